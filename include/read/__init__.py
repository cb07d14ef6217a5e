"""What is published: publications, queries over pinned tables, subscriptions, and the copy in an object store."""
