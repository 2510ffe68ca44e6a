"""What compiles, when and why; programs to look at; the compile cache.

Owns nothing that runs: it watches `engine.cache` and reads programs. May import everything below `tapejax.tensor`, and nobody
imports it but the package itself and the command line. Explaining never changes what is recorded, compiled or computed.
"""

from tapejax.debug.cache import CacheInfo, cache_info, clear_cache, set_cache_dir
from tapejax.debug.compiles import Compile, assert_compiles, compile_count
from tapejax.debug.explaining import explain
from tapejax.debug.recompile import RecompileWarning
from tapejax.debug.shown import Shown, program
