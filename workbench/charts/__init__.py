"""Results to Bokeh figures: one function a chart."""
