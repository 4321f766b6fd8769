-- An instant for people, as `Timestamp` writes it: a fraction only if there is one, without zeros at its end. A
-- calendar that begins before the year 1 is not for people.
CREATE OR REPLACE FUNCTION instant(at bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN at > 253402207200999999 THEN 'never'
        WHEN at < -62135596800000000 THEN 'long ago'
        ELSE to_char(timestamp 'epoch' + (at - (at % 1000000 + 1000000) % 1000000) / 1000000 * interval '1 second',
                     'YYYY-MM-DD"T"HH24:MI:SS')
             || rtrim(to_char((at % 1000000 + 1000000) % 1000000, '"."FM000000'), '0.') || 'Z'
    END
$$ SET search_path FROM CURRENT;
