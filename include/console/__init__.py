"""The console: pages in a browser that show streams, tables, plans and quality; decisions on plans after a log-in."""
