-- It served to find what ran when a process ended, once, and had to be written twice for every job. Opening reads all
-- live jobs anyway.
DROP INDEX job_running;
