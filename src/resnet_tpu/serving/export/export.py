"""Exports a checkpoint as a bundle."""

import functools
import importlib.util
import logging
import re
from collections.abc import Callable, Mapping

from resnet_tpu import storage
from resnet_tpu.errors import UserError, missing_extra, nearest
from resnet_tpu.options.config import PREPROCESSING, Config, EvalConfig, require_config
from resnet_tpu.options.fields import numbers_in
from resnet_tpu.parallel import hosts
from resnet_tpu.reports.progress import track
from resnet_tpu.serving.export.bundle import FORMS, Bundle, Form, Maker, write_bundle
from resnet_tpu.serving.export.card import make_card
from resnet_tpu.serving.export.fold import Folded, fold
from resnet_tpu.training.inference.trained import Trained, data_for_network, load_newest

log = logging.getLogger(__name__)

_PACKAGES: dict[Form, tuple[str, ...]] = {
    "stablehlo": (), "onnx": ("onnx",), "int8": ("onnx", "onnxruntime"), "savedmodel": ("tensorflow",),
}  # fmt: skip
"""The packages needed to write each form."""

_EXTRAS: dict[Form, str] = {"onnx": "onnx", "int8": "onnx", "savedmodel": "tf"}
"""The extra of this package that installs them."""

_DEFAULT_FORMS: tuple[Form, ...] = ("stablehlo", "onnx", "savedmodel")


def export_run(
    config: Config, trained: Trained | None = None, *, check: Callable[[Bundle], object] | None = None
) -> str:
    """Exports the newest checkpoint of `model_dir` to `export_dir` and returns the path of the bundle.

    trained: the checkpoint, if it is loaded already. check: called with the bundle before it appears; if it raises, no
    bundle appears. With several processes the first one writes, and all return the path. Raises UserError.
    """
    require_config(config)
    if not config.eval.export_dir:
        raise UserError("export_dir", "nothing", "a folder for bundles", "Give --export_dir=FOLDER.")
    check_export(config.eval)
    with hosts.connected(config.run):
        checkpoint = trained or load_newest(config)
        path = hosts.from_first(lambda: export_model(checkpoint, config, check))
    log.info("Exported to %s", path)
    return path


def export_model(trained: Trained, config: Config, check: Callable[[Bundle], object] | None = None) -> str:
    """Writes a bundle under `export_dir`, completely or not at all, and returns its path.

    config: the options of the export, and of the data that calibrate the int8 form. check: see `export_run`. Raises
    UserError.
    """
    options = config.eval
    folded = fold(trained)
    sizes = batch_sizes(options)
    card = make_card(
        trained, folded, name=options.model_name, averaged=options.export_moving_average, warmup_batch_sizes=sizes
    )
    if not options.export_forms:
        _report_left_out()
    forms: list[tuple[Form, Maker]] = [
        (form, functools.partial(_write_form, form, trained, folded, config)) for form in chosen_forms(options)
    ]
    if options.add_warmup_requests and "savedmodel" not in dict(forms):
        log.info("add_warmup_requests: nothing to do without a SavedModel; `resnet-tpu serve` warms up by itself")
    return write_bundle(options.export_dir, card, trained.config, track(forms, "export", total=len(forms)), check)


def check_export(options: EvalConfig) -> None:
    """Raises UserError for invalid options, missing packages, and a folder that cannot be written to."""
    for form in chosen_forms(options):
        if package := _missing_package(form):
            raise missing_extra(f"Form {form}", package, _EXTRAS[form])
    batch_sizes(options)
    if not re.fullmatch(r"[\w.-]+", options.model_name, re.ASCII):
        do = "Clients ask for it by this name: /v1/models/NAME."
        raise UserError("model_name", repr(options.model_name), "English letters, digits, '.', '_' and '-'", do)
    storage.check_writable(options.export_dir)


def chosen_forms(options: EvalConfig) -> tuple[Form, ...]:
    """The forms that the options ask for, each once. Raises UserError for an unknown form."""
    if not options.export_forms:
        return tuple(form for form in _DEFAULT_FORMS if not _missing_package(form))
    names = [name.strip() for name in options.export_forms.split(",")]
    for name in names:
        if name not in FORMS:
            raise UserError(
                "export_forms", name or "nothing", f"some of {', '.join(FORMS)}", f"Correct it.{nearest(name, FORMS)}"
            )
    return tuple(form for form in FORMS if form in names)


def batch_sizes(options: EvalConfig) -> tuple[int, ...]:
    """The numbers in `inference_batch_sizes`, ascending. Raises UserError for anything but positive numbers."""
    sizes = numbers_in(options.inference_batch_sizes, int)
    if not sizes or min(sizes) < 1:
        expected = "positive numbers separated by commas, such as 1,8,32"
        raise UserError("inference_batch_sizes", repr(options.inference_batch_sizes), expected, "Change the value.")
    return tuple(sorted({*sizes}))


def _missing_package(form: Form) -> str | None:
    """The first package that is needed to write a form and is not installed."""
    return next((name for name in _PACKAGES[form] if importlib.util.find_spec(name) is None), None)


def _report_left_out() -> None:
    for form in _DEFAULT_FORMS:
        if _missing_package(form):
            log.info("Not exported as %s, which needs pip install 'resnet-tpu[%s]'", form, _EXTRAS[form])


def _write_form(form: Form, trained: Trained, folded: Folded, config: Config) -> Mapping[str, bytes]:
    """The files of a form, by path in the bundle. Only the form that needs a heavy package imports it."""
    if form == "stablehlo":
        from resnet_tpu.serving.export.stablehlo import write_stablehlo

        return write_stablehlo(folded)
    if form == "onnx":
        from resnet_tpu.serving.export.onnx import write_onnx

        return write_onnx(folded)
    if form == "int8":
        from resnet_tpu.serving.export.quantize import write_int8

        return write_int8(folded, data_for_network(config.data, trained.config.data, also=PREPROCESSING))
    from resnet_tpu.serving.export.savedmodel import write_savedmodel

    return write_savedmodel(folded, trained.config.data, config.eval, batch_sizes(config.eval))
