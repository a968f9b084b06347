"""A stand-in for six: the one module that scripts take from it."""

import sys
import urllib.request
from types import ModuleType

moves = ModuleType("six.moves")
moves.urllib = urllib
sys.modules["six.moves"] = moves
