-- An interval in nanoseconds, cut to what fits; null if it is. (As `later`.)
CREATE OR REPLACE FUNCTION nanos(length interval) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length IS NOT NULL THEN (least(extract(epoch FROM length), 9000000000) OPERATOR(pg_catalog.*) 1000000000)::bigint END
$$;
