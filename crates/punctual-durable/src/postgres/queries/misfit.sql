-- What of a job is out of bounds, in words; null if nothing is. Every door asks before anything is written. A job whose
-- words are too long for an index could be taken in and never fall due, or run and never end; one with a number that no
-- node can read could never be given out. Each would be in the way of all the others.
-- `shortest` is the least of its lengths of time, `earliest` and `latest` are the bounds of its instants.
CREATE OR REPLACE FUNCTION misfit(kind text, tenant text, unique_key text, schedule text, tags text[], priority int, cost bigint, max_attempts bigint,
                                  max_crashes bigint, shortest bigint, earliest bigint, latest bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    -- As in `NewJob`.
    word_max CONSTANT int := 512;
    tags_max CONSTANT int := 64;
    most CONSTANT bigint := 4294967295;
    never CONSTANT bigint := 4000000000000000000;
    longest int;
BEGIN
    IF tags IS NOT NULL THEN
        IF array_ndims(tags) > 1 OR array_position(tags, NULL) IS NOT NULL THEN
            RETURN 'tags must be a list of words';
        ELSIF cardinality(tags) > tags_max THEN
            RETURN format('the job has %s tags (at most %s)', cardinality(tags), tags_max);
        END IF;
        SELECT max(octet_length(w)) INTO longest FROM unnest(tags) AS w;
    END IF;
    RETURN CASE
        WHEN octet_length(tenant) > word_max THEN format('the job''s tenant has %s bytes (at most %s)', octet_length(tenant), word_max)
        WHEN octet_length(kind) > word_max THEN format('the job''s kind has %s bytes (at most %s)', octet_length(kind), word_max)
        WHEN octet_length(unique_key) > word_max THEN format('the job''s unique key has %s bytes (at most %s)', octet_length(unique_key), word_max)
        WHEN octet_length(schedule) > word_max THEN format('the job''s schedule has %s bytes (at most %s)', octet_length(schedule), word_max)
        WHEN longest > word_max THEN format('the job''s tag has %s bytes (at most %s)', longest, word_max)
        WHEN priority NOT BETWEEN -128 AND 127 THEN format('priority is %s, and must be from -128 to 127', priority)
        -- None counts as one.
        WHEN cost NOT BETWEEN 0 AND most THEN format('cost is %s, and must be from 1 to %s', cost, most)
        WHEN max_attempts NOT BETWEEN 0 AND most THEN format('max_attempts is %s, and must be from 1 to %s', max_attempts, most)
        WHEN max_crashes NOT BETWEEN 0 AND most THEN format('max_crashes is %s, and must be from 1 to %s', max_crashes, most)
        WHEN shortest < 0 THEN 'no time may be negative'
        WHEN earliest < -never OR latest > never THEN 'an instant is out of range'
    END;
END $$ SET search_path FROM CURRENT;
