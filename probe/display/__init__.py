"""Faces for any result: tables, panels, terminal, notebook, pictures, pages and workbooks."""
