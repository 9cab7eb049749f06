"""The commands of `tokswarm`, one module each: they parse, call and print, and know no more."""
