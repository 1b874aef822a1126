# Copyright 2023–2026 Google LLC
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#    https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Weights that stand in other collections of a checkpoint than "params", such as the routing bias.

A model in memory has one tree for all of them. This module imports neither jax nor the rest of MaxText.
"""

from typing import Any, Iterator

PARAMS = "params"
Path = tuple[str, ...]


def _leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
  if not hasattr(tree, "items"):
    yield path, tree
    return
  for key, value in tree.items():
    yield from _leaves(value, (*path, key))


def _has(tree: Any, path: Path) -> bool:
  for key in path:
    if not hasattr(tree, "items") or key not in tree:
      return False
    tree = tree[key]
  return True


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
  for key in path[:-1]:
    tree = tree.setdefault(key, {})
  tree[path[-1]] = value


def by_collection(requested: Any, stored: Any) -> dict[str, Any]:
  """Returns what is requested of a checkpoint by the collections that the checkpoint has it in.

  Args:
    requested: tree of all that the model needs.
    stored: trees of the checkpoint by collection. What is in none of them is requested of "params".
  """
  result: dict[str, Any] = {PARAMS: {}}
  others = [name for name in stored if name != PARAMS]
  for path, leaf in _leaves(requested):
    collection = PARAMS
    if not _has(stored.get(PARAMS), path):
      collection = next((name for name in others if _has(stored[name], path)), PARAMS)
    _put(result, (collection, *path), leaf)
  return result


def merged(collections: Any) -> dict[str, Any]:
  """Returns the one tree of a model from trees by collection."""
  result: dict[str, Any] = {}
  for tree in collections.values():
    for path, leaf in _leaves(tree):
      _put(result, path, leaf)
  return result
