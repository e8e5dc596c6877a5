# Each host of a TPU slice runs this when it starts: it trains in a container, and stores log and exit code in FOLDER.
# Variables to set before: IMAGE, COMMAND (an array), FOLDER, PAUSE, and QUEUED_RESOURCE, PROJECT, ZONE to delete the
# slice at the end; an empty QUEUED_RESOURCE keeps it.

metadata=http://metadata.google.internal/computeMetadata/v1/instance/attributes
host=$(curl --silent --fail --header 'Metadata-Flavor: Google' "$metadata/agent-worker-number" || echo 0)
log=$(mktemp)

keep() {  # FILE NAME: copies the file to FOLDER, in up to five attempts
  for try in 1 2 3 4 5; do
    gcloud storage cp --quiet "$1" "$FOLDER/$2" >/dev/null 2>&1 && return
    sleep "$PAUSE"
  done
}

case "$IMAGE" in
  *.pkg.dev/*|gcr.io/*|*.gcr.io/*) gcloud auth configure-docker --quiet "${IMAGE%%/*}" >>"$log" 2>&1 ;;
esac

docker run --rm --privileged --network=host "$IMAGE" "${COMMAND[@]}" >>"$log" 2>&1 &
training=$!
while kill -0 "$training" 2>/dev/null; do
  sleep "$PAUSE"
  keep "$log" "log-$host.txt"
done
wait "$training"
code=$?

keep "$log" "log-$host.txt"
echo "$code" >"$log.code"
keep "$log.code" "exit-$host"

if [ -n "$QUEUED_RESOURCE" ] && [ "$host" = 0 ]; then
  gcloud compute tpus queued-resources delete "$QUEUED_RESOURCE" \
    --project="$PROJECT" --zone="$ZONE" --force --async --quiet
fi
