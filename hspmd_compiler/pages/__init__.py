"""What people see of an artifact: tables and listings that a terminal, a text or JSON can hold.

Enters: one module for each page. Imports `artifact`, and `passes` for schedules.
"""
