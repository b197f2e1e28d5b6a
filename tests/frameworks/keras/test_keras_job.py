"""byteps.keras over two workers: what every Keras must do, in a job for each backend of Keras 3 and for tf_keras."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import framework

framework("keras")

from byteps.keras.flavor import is_keras_3
from jobs import Outcomes, clean_environment, launcher_command, run_job
from keras_batch_norm_bodies import (
    batches_of_different_sizes_are_normalized_together,
    one_rank_alone_traces_again,
    statistics_are_averaged,
    synchronized_batch_normalization,
    wrong_arguments_of_batch_normalization,
)
from keras_callback_bodies import (
    best_model_of_rank_0,
    broadcast_of_a_model_that_is_not_built,
    callbacks_of_the_installed_keras,
    learning_rates,
    metrics_of_all,
    metrics_that_are_arrays,
    momentum_correction,
    momentum_with_and_without_learning_rates,
)
from keras_copy_bodies import (
    copies_of_local_layers,
    copies_of_optimizers,
    copies_stay_distributed,
    saved_and_loaded,
    saved_as_the_plain_optimizer,
)
from keras_elastic_bodies import (
    commits_are_counted_from_the_start,
    elastic,
    epochs_of_both_styles,
    state,
    state_before_the_first_step,
    state_of_a_model_that_is_not_built,
)
from keras_optimizer_bodies import (
    a_rank_outside_of_the_process_set,
    an_optimizer_for_each_variable,
    an_optimizer_for_each_variable_is_loaded,
    as_one_process_on_the_double_batch,
    clipping_and_averages_after_the_reduction,
    compressed,
    divided_before_the_sum,
    each_reduction,
    embeddings,
    global_variables_are_of_graphs,
    local_variables_stay,
    of_local_layers,
    process_set_of_one,
    random_numbers_stay,
    without_a_session,
    wrong_arguments,
    wrong_optimizers_for_each_variable,
    xla_on_tensorflow_is_refused,
)
from keras_scaling_bodies import (
    accumulated_gradients,
    accumulated_gradients_are_scaled,
    accumulation_is_loaded_again,
    accumulation_with_float8,
    constant_loss_scaling_outside,
    loss_scaling_outside_is_refused,
    mixed_precision,
    norm_of_all_with_local_layers_is_refused,
    overflow_of_a_local_layer,
    overflow_of_a_local_layer_while_a_rank_has_joined,
    overflow_of_one_rank,
)
from keras_value_bodies import (
    broadcasts_of_different_arrays_are_refused,
    refused_values_use_no_number,
    values,
    values_as_horovod_gives_them,
    values_of_pytorch,
)

OF_ALL = [
    local_variables_stay,
    as_one_process_on_the_double_batch,
    clipping_and_averages_after_the_reduction,
    compressed,
    broadcast_of_a_model_that_is_not_built,
    metrics_of_all,
    metrics_that_are_arrays,
    callbacks_of_the_installed_keras,
    learning_rates,
    momentum_correction,
    momentum_with_and_without_learning_rates,
    saved_and_loaded,
    saved_as_the_plain_optimizer,
    copies_stay_distributed,
    copies_of_local_layers,
    copies_of_optimizers,
    best_model_of_rank_0,
    of_local_layers,
    each_reduction,
    divided_before_the_sum,
    embeddings,
    synchronized_batch_normalization,
    one_rank_alone_traces_again,
    statistics_are_averaged,
    wrong_arguments_of_batch_normalization,
    values,
    values_as_horovod_gives_them,
    refused_values_use_no_number,
    broadcasts_of_different_arrays_are_refused,
    process_set_of_one,
    a_rank_outside_of_the_process_set,
    state,
    state_before_the_first_step,
    state_of_a_model_that_is_not_built,
    overflow_of_one_rank,
    overflow_of_a_local_layer,
    overflow_of_a_local_layer_while_a_rank_has_joined,
    mixed_precision,
    norm_of_all_with_local_layers_is_refused,
    loss_scaling_outside_is_refused,
    without_a_session,
    elastic,
    epochs_of_both_styles,
    commits_are_counted_from_the_start,
    wrong_arguments,
]
OF_KERAS_3 = [
    an_optimizer_for_each_variable,
    an_optimizer_for_each_variable_is_loaded,
    wrong_optimizers_for_each_variable,
    batches_of_different_sizes_are_normalized_together,
    accumulated_gradients,
    accumulation_is_loaded_again,
    accumulation_with_float8,
    accumulated_gradients_are_scaled,
    random_numbers_stay,
]
OF_TF_KERAS = [constant_loss_scaling_outside]
OF_TENSORFLOW = [xla_on_tensorflow_is_refused, global_variables_are_of_graphs]
OF_PYTORCH = [values_of_pytorch]
_ON_TENSORFLOW = ("tensorflow", "tf_keras")
_PYTORCH_IS_HERE = all(importlib.util.find_spec(name) is not None for name in ("torch", "ml_dtypes"))


def _is_keras_3(of: str) -> bool:
    """Of a backend, or the package tf_keras: whether Keras 3 runs on it. Old releases of TensorFlow bring Keras 2."""
    return of != "tf_keras" and is_keras_3(importlib.import_module("keras"))


@pytest.fixture(scope="module", params=["tensorflow", "torch", "jax", "tf_keras"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """A job of two workers and one server that has run the bodies on this backend, or in this package."""
    of = request.param
    if importlib.util.find_spec(of) is None:
        pytest.skip(f"{of} is not installed here: tools/setup --frameworks")
    keras_3 = _is_keras_3(of)
    environment = clean_environment(
        BYTEPS_OP_TIMEOUT="120",
        KERAS_BACKEND=of if keras_3 else "tensorflow",
        TESTED_KERAS=of if of == "tf_keras" else "keras",
    )
    of_package = OF_KERAS_3 if keras_3 else OF_TF_KERAS
    bodies = [*OF_ALL, *of_package, *(OF_TENSORFLOW if of in _ON_TENSORFLOW else ())]
    bodies += OF_PYTORCH if _PYTORCH_IS_HERE else ()
    folder = tmp_path_factory.mktemp("job")
    launcher = launcher_command(2, 1)
    return Outcomes(run_job(folder, launcher, 2, bodies, (), environment, check=False, file=Path(__file__)))


@pytest.mark.parametrize("body", [*OF_ALL, *OF_KERAS_3, *OF_TF_KERAS, *OF_TENSORFLOW, *OF_PYTORCH])
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    if body in OF_KERAS_3 and not _is_keras_3(request.node.callspec.params["outcomes"]):
        pytest.skip("of Keras 3 alone")
    if body in OF_TF_KERAS and _is_keras_3(request.node.callspec.params["outcomes"]):
        pytest.skip("of tf_keras alone")
    if body in OF_TENSORFLOW and request.node.callspec.params["outcomes"] not in _ON_TENSORFLOW:
        pytest.skip("of TensorFlow alone")
    if body in OF_PYTORCH and not _PYTORCH_IS_HERE:
        pytest.skip("where PyTorch and ml_dtypes are installed")
    outcomes.check(body)
