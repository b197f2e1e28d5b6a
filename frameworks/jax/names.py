"""Names of the leaves of a pytree: what they are called among the workers."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from byteps.arguments import tensor_name
from byteps.jax import versions
from byteps.jax.primitive import refuse_to_run_again
from byteps.process_set import ProcessSet, global_process_set
from byteps.session import current_session

import jax

# Compiled programs keep their names, so these numbers are not given again: neither in another session nor behind a
# join(), where a rank that ran out of data traces with its next batch what the others have compiled, by these numbers.
# Of each process set and kind: ranks that are not in a set do not trace what is over it.
_TRACED: defaultdict[tuple[str, str], Iterator[int]] = defaultdict(itertools.count)

# Those of calls that were refused while they were traced.
_UNUSED: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

# How often a name was asked for in a program that is being traced.
_ASKED: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()


def _part(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def leaf_names(prefix: str, tree: Any) -> tuple[list[str], list[Any], Any]:
    """A name, "prefix.path.to.leaf", for each leaf; the leaves; and the structure without them. A tree that is a leaf
    is called `prefix`.

    Raises:
        ValueError: two leaves would have the same name, or one has a key that cannot be part of a name.
    """
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [tensor_name(".".join([prefix, *(_part(entry) for entry in path)])) for path, _ in with_paths]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"two leaves have the name {twice[0]}; rename one key of the pytree")
    return names, [leaf for _, leaf in with_paths], structure


@contextmanager
def operation_name(
    kind: str, name: str | None, tree: Any, process_set: ProcessSet = global_process_set
) -> Iterator[str]:
    """The name of an operation on `tree`: the caller's, or the next number of its kind. Operations of programs are
    numbered when those are traced; if JAX refuses one in the block, such as one that has no gradient, the next one has
    that number, so that the ranks stay in step. What else can be wrong is to be refused before.

    Raises:
        NotInitializedError: before init().
        ValueError: no name.
        FloatingPointError: JAX runs a program again (jax_debug_nans, jax_debug_infs): no number is drawn.
    """
    refuse_to_run_again()
    session = current_session()
    if name is not None:
        yield tensor_name(name)
    elif versions.in_program() or any(versions.is_traced(leaf) for leaf in jax.tree_util.tree_leaves(tree)):
        key = process_set.key(), kind
        number = _UNUSED[key].pop() if _UNUSED[key] else next(_TRACED[key])
        try:
            yield f"{kind}.traced.{number}"
        except (TypeError, ValueError, NotImplementedError):
            _UNUSED[key].append(number)
            raise
    else:
        yield f"{kind}.noname.{session.number(kind, process_set.key())}"


def name_in_program(name: str) -> str | None:
    """The name, with a number if the program that is being traced has it already. So a program has the same names each
    time it is traced, also if one rank alone traces it again. None outside of programs, and in versions of JAX that do
    not tell what is part of which program."""
    program = versions.outermost_trace()
    if program is None:
        return None
    asked = _ASKED.setdefault(program, Counter())
    asked[name] += 1
    return name if asked[name] == 1 else f"{name}.{asked[name]}"


def gradient_name(name: str) -> str:
    """The name of the operation on the gradient of the result of `name`. What jax.vjp returns may be called several
    times in one program, with other gradients."""
    name += ".gradient"
    return name_in_program(name) or name
