-- What a tenant has, as in `numbers`, after one more or one less of a stage; null if that was not counted. (Each name
-- says whose it is, as in `starts`.)
CREATE OR REPLACE FUNCTION count_on(load bigint[], stage text, change int) RETURNS bigint[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN load IS NOT NULL THEN
        ARRAY[load[1] OPERATOR(pg_catalog.+) CASE WHEN stage OPERATOR(pg_catalog.=) 'scheduled' THEN change ELSE 0 END,
              load[2] OPERATOR(pg_catalog.+) CASE WHEN stage OPERATOR(pg_catalog.=) 'ready' THEN change ELSE 0 END, load[3]] END
$$;
