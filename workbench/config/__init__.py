"""config.pbtxt: parse, edit without loss, validate, lint."""
