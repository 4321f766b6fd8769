-- The present by the store's clock, in microseconds.
CREATE OR REPLACE FUNCTION clock(at bigint DEFAULT NULL) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT present(at)
$$ SET search_path FROM CURRENT;
