"""The objects for Kibana: made of a short description, checked strictly."""
