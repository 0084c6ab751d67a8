"""Backends of the op `draft_merge`: what `specdec_plugin_combine.merging` asks of one."""
