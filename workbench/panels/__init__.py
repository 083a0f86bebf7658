"""Views of a session's state in a notebook: ipywidgets forms and Bokeh charts."""
