"""Django's PostgreSQL backend, with what DESIGN rule 4.8 needs of it besides."""
