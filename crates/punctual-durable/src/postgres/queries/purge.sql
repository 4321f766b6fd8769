-- Forgets these jobs if they have ended; answers how many it was.
CREATE OR REPLACE FUNCTION purge(ids uuid[], at bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ended uuid[];
    ends bigint[];
BEGIN
    PERFORM expire_one(i, present(at)) FROM unnest(ids) AS i ORDER BY i;
    SELECT array_agg(h.id), array_agg(h.since) INTO ended, ends FROM history h WHERE h.id = ANY (ids);
    RETURN forget_ended(ended, ends);
END $$ SET search_path FROM CURRENT;
