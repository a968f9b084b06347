"""Tables: CSV, TSV, JSON lines, Parquet and Arrow files whose columns become inputs and a target."""

from . import recipe as recipe  # registers the data set
