-- So many nanoseconds after an instant: parts of a microsecond count as one, and nothing is later than never. Null if
-- either is. (Without settings, so that it becomes part of the statements that call it; so it names whose operators it
-- means.)
CREATE OR REPLACE FUNCTION later(at bigint, nanos bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN at IS NULL OR nanos IS NULL THEN NULL
           ELSE least(at OPERATOR(pg_catalog.+) (nanos OPERATOR(pg_catalog./) 1000)
                      OPERATOR(pg_catalog.+) ((nanos OPERATOR(pg_catalog.%) 1000) OPERATOR(pg_catalog.>) 0)::int, 4000000000000000000) END
$$;
