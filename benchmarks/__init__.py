"""Measurements on test beds of their own. A tool for developers: nothing imports it."""
