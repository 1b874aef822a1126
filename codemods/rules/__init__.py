"""The rules, by family. A family's module has `RULES` and `python(file)` and/or `text(file)`."""
