# The procedures of the original's pruning fork, word for word. tests/test_seed_commands.py changes names of places
# and sizes, and says what `python` and `gsutil` are.

# ## Initial training
DATA_DIR=WHEREVER_IMAGENET_IS_LOCATED
RESNET_DEPTH=50 # or 34

function train() {
    MODEL_DIR="${1}"; shift

    python "official/resnet/resnet_main.py" \
       --hparams_file official/resnet/configs/cloud/v3-8.yaml \
       --data_dir "${DATA_DIR}" \
       --resnet_depth ${RESNET_DEPTH} \
       --model_dir "${MODEL_DIR}" \
       --lottery_results_dir "${MODEL_DIR}" \
       --tpu "${TPU_NAME}" \
       --lottery_checkpoint_iters 0,11259,22518,33777,45036,56295,67554,78813,90072,101331,112590 \
       "${@}"
}

# TPUs can only read from / write to gcloud directories, so make and use one of those
train gs://${YOUR_BUCKET_HERE}/train_model_results

# ## Rewinding weights and learning rate
REWIND_ITERATION=11259
PREV_DIR=gs://${YOUR_BUCKET_HERE}/train_model_results
RESULT_DIR=gs://${YOUR_BUCKET_HERE}/rewind_model_results

# tensorflow can be annoying if it doesn't think it's starting from the right checkpoint
gsutil cp "${PREV_DIR}/checkpoint_iter_${REWIND_ITERATION}"'*' "${PREV_DIR}/graph.pbtxt" "${RESULT_DIR}/"
# also it's hard to write a file to gcloud
tmpfile="$(mktemp)"
echo 'model_checkpoint_path: "'"checkpoint_iter_${REWIND_ITERATION}"'"' > "${tmpfile}"
gsutil cp "${tmpfile}" "${RESULT_DIR}/checkpoint"
rm "${tmpfile}"

# prune to 80% density, rewind to iteration 11259, and re-train.
train ${RESULT_DIR} \
    --train_steps 112590 \
    --lottery_pruning_method "prune_all_to_global_80.0" \
    --lottery_reset_to "${PREV_DIR}/checkpoint_iter_${REWIND_ITERATION}" \
    --lottery_prune_at "${PREV_DIR}/checkpoint_iter_final"

# ## Rewinding learning rate
REWIND_ITERATION=11259
PREV_DIR=gs://${YOUR_BUCKET_HERE}/train_model_results
RESULT_DIR=gs://${YOUR_BUCKET_HERE}/rewind_lr_model_results

# tensorflow can be annoying if it doesn't think it's starting from the right checkpoint
gsutil cp "${PREV_DIR}/checkpoint_iter_${REWIND_ITERATION}"'*' "${PREV_DIR}/graph.pbtxt" "${RESULT_DIR}/"
# also it's hard to write a file to gcloud
tmpfile="$(mktemp)"
echo 'model_checkpoint_path: "'"checkpoint_iter_${REWIND_ITERATION}"'"' > "${tmpfile}"
gsutil cp "${tmpfile}" "${RESULT_DIR}/checkpoint"
rm "${tmpfile}"

# prune to 80% density, rewind to iteration 11259, and re-train.
train ${RESULT_DIR} \
    --train_steps 112590 \
    --lottery_pruning_method "prune_all_to_global_80.0" \
    --lottery_reset_to "${PREV_DIR}/checkpoint_iter_final" \
    --lottery_reset_global_step_to "${PREV_DIR}/checkpoint_iter_${REWIND_ITERATION}" \
    --lottery_prune_at "${PREV_DIR}/checkpoint_iter_final"

# ## Fine-tuning
REWIND_ITERATION=11259
MAX_TRAIN_STEPS=$(expr 112590 + 112590 - ${REWIND_ITERATION})
PREV_DIR=gs://${YOUR_BUCKET_HERE}/train_model_results
RESULT_DIR=gs://${YOUR_BUCKET_HERE}/rewind_lr_model_results

# tensorflow can be annoying if it doesn't think it's starting from the right checkpoint
gsutil cp "${PREV_DIR}/checkpoint_iter_final"'*' "${PREV_DIR}/graph.pbtxt" "${RESULT_DIR}/"
# also it's hard to write a file to gcloud
tmpfile="$(mktemp)"
echo 'model_checkpoint_path: "'"checkpoint_iter_final"'"' > "${tmpfile}"
gsutil cp "${tmpfile}" "${RESULT_DIR}/checkpoint"
rm "${tmpfile}"

# prune to 80% density, fine-tune
# lottery_force_learning_rate is explicitly set to the LR that the model should use while fine-tuning
train ${RESULT_DIR} \
    --train_steps ${MAX_TRAIN_STEPS} \
    --lottery_pruning_method "prune_all_to_global_80.0" \
    --lottery_force_learning_rate "0.0004" \
    --lottery_reset_to "${PREV_DIR}/checkpoint_iter_final" \
    --lottery_prune_at "${PREV_DIR}/checkpoint_iter_final"
