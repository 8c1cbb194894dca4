"""Methods that SORT is compared with; each is one file that generates attempts for an API."""
