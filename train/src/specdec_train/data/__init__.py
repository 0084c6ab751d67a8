"""Collected data on disk: a manifest, and shards of ids with the target's states; format 1 of docs/train.md."""

from specdec_train.data.manifest import FORMAT as FORMAT
from specdec_train.data.manifest import Manifest as Manifest
from specdec_train.data.manifest import ShardEntry as ShardEntry
from specdec_train.data.reading import Data as Data
from specdec_train.data.reading import Request as Request
from specdec_train.data.writing import Collected as Collected
from specdec_train.data.writing import Writer as Writer
from specdec_train.data.writing import is_held_out as is_held_out
