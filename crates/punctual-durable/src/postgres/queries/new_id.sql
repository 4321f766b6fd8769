-- A new job id, for callers that bring none: version 7, so that ids are in the order of time.
CREATE OR REPLACE FUNCTION new_id(t bigint) RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN encode(set_byte(
        overlay(uuid_send(gen_random_uuid()) PLACING substring(int8send(t / 1000) FROM 3) FROM 1 FOR 6),
        6, (get_byte(uuid_send(gen_random_uuid()), 6) & 15) | 112), 'hex')::uuid;
END $$ SET search_path FROM CURRENT;
