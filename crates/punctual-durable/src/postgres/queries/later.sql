-- So many nanoseconds after an instant: parts of a microsecond count as one, and nothing is later than never. Null if either is.
CREATE OR REPLACE FUNCTION later(at bigint, nanos bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN at IS NULL OR nanos IS NULL THEN NULL
           ELSE least(at + nanos / 1000 + (nanos % 1000 > 0)::int, 4000000000000000000) END
$$;
