//! What `cron` promises: errors that name the field, and runs that survive the days when the clocks change.
//!
//! The tables show each rule on one real clock change. The properties at the end compare random expressions with models
//! that know nothing of spans or of croner: one looks at the wall clock of every minute around a change, one leafs
//! through the calendar day by day.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, UNIX_EPOCH};

use jiff::civil::{Date, Weekday};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::string::string_regex;

use super::*;

fn cron(expression: &str, zone: &str) -> Cron {
    Cron::parse(expression).unwrap().in_zone(zone).unwrap()
}

fn instant(text: &str) -> SystemTime {
    text.parse::<Timestamp>().unwrap().into()
}

/// The first `n` runs after an instant, as the wall clock of the zone shows them.
fn runs(n: usize, expression: &str, zone: &str, after: &str) -> String {
    let runs = cron(expression, zone).next_runs_after(instant(after), n);
    let shown = runs.iter().map(|run| run.strftime("%m-%d %H:%M:%S%:::z").to_string());
    shown.collect::<Vec<_>>().join(", ").replace(":00+", "+").replace(":00-", "-")
}

fn message(expression: &str) -> String {
    Cron::parse(expression).unwrap_err().to_string()
}

/// Each line: an expression, the field it is refused for, and why.
const REFUSED: &str = "\
60 0 * * * * => seconds: values are 0 to 59
x 0 * * * * => seconds: values are 0 to 59
1.5 0 * * * * => seconds: values are 0 to 59
61 * * * * => minutes: values are 0 to 59
60 * * * * => minutes: values are 0 to 59
99999 * * * * => minutes: values are 0 to 59
jan * * * * => minutes: values are 0 to 59
1,,2 * * * * => minutes: values are 0 to 59
, * * * * => minutes: values are 0 to 59
-5 * * * * => minutes: values are 0 to 59
+5 * * * * => minutes: values are 0 to 59
5-SUN * * * * => minutes: values are 0 to 59
? * * * * => minutes: values are 0 to 59
L * * * * => minutes: values are 0 to 59
1-2-3 * * * * => minutes: values are 0 to 59
٣ * * * * => minutes: values are 0 to 59
*/0 * * * * => minutes: a step follows * or a range and is 1 to 60
*/61 * * * * => minutes: a step follows * or a range and is 1 to 60
*/90 * * * * => minutes: a step follows * or a range and is 1 to 60
*/ * * * * => minutes: a step follows * or a range and is 1 to 60
5/10 * * * * => minutes: a step follows * or a range and is 1 to 60
/10 * * * * => minutes: a step follows * or a range and is 1 to 60
*/2/3 * * * * => minutes: a step follows * or a range and is 1 to 60
0 24 * * * => hours: values are 0 to 23
0 9-24 * * * => hours: values are 0 to 23
0 MON * * * => hours: values are 0 to 23
0 22-2 * * * => hours: a range must not run backwards
0 22-2/3 * * * => hours: a range must not run backwards
0 */25 * * * => hours: a step follows * or a range and is 1 to 24
0 1-5/25 * * * => hours: a step follows * or a range and is 1 to 24
0 */-1 * * * => hours: a step follows * or a range and is 1 to 24
0 0 0 * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 32 * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 0W * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 15W3 * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 L-3 * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 1-5W * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 W * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 1#2 * * => day of month: values are 1 to 31, L, LW or 1W to 31W
0 0 L,LW * * => day of month: L and LW exclude each other
0 0 30 2 * => day of month: never matches, no year has such a day
0 0 31 2,4,6,9,11 * => day of month: never matches, no year has such a day
0 0 30W 2 ? => day of month: never matches, no year has such a day
0 0 1-7 * +FRI#5 => day of month: never matches, no year has such a day
0 0 * 0 * => month: values are 1 to 12 or JAN to DEC
0 0 * 13 * => month: values are 1 to 12 or JAN to DEC
0 0 * MON * => month: values are 1 to 12 or JAN to DEC
0 0 * 1JAN * => month: values are 1 to 12 or JAN to DEC
0 0 * JAN-SUN * => month: values are 1 to 12 or JAN to DEC
0 0 * * 8 => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * MONDAY => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * MON1 => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * L => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * FRI#6 => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * FRI#0 => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * 1#2#3 => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * *#2 => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * ++1 => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * + => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * ſun => day of week: values are 0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it
0 0 * * FRI-MON => day of week: a range must not run backwards
0 0 * * 5-0 => day of week: a range must not run backwards";

/// C18
#[test]
fn a_bad_field_is_named_with_its_text_and_what_is_allowed() {
    for line in REFUSED.lines() {
        let (expression, refusal) = line.split_once(" => ").unwrap();
        let (field, reason) = refusal.split_once(": ").unwrap();
        let index = FIELDS.iter().position(|known| known.name == field).unwrap();
        let texts: Vec<&str> = expression.split_whitespace().collect();
        let text = texts[index + texts.len() - FIELDS.len()];

        let error = Cron::parse(expression).unwrap_err();
        let expected = format!("bad {field} field {text:?} in cron {expression:?}: {reason}");
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.field(), Some(field));
    }
}

/// C18
#[test]
fn an_expression_that_is_wrong_as_a_whole_says_how() {
    let fields = "fields: 5 are needed, or 6 with seconds first";
    assert_eq!(message(""), format!(r#"cron "" has 0 {fields}"#));
    assert_eq!(message(" \t\n"), format!(r#"cron "" has 0 {fields}"#));
    assert_eq!(message("* * * *"), format!(r#"cron "* * * *" has 4 {fields}"#));
    assert_eq!(message("* * * * * * *"), format!(r#"cron "* * * * * * *" has 7 {fields}"#));
    assert_eq!(message(&"*".repeat(257)), "cron of 257 bytes is too long (256)");
    assert_eq!(
        message("@reboot"),
        "unknown nickname in cron \"@reboot\": nicknames are \
         @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually"
    );
    assert_eq!(Cron::parse("@reboot").unwrap_err().field(), None);
}

#[test]
fn the_longest_expression_that_is_allowed_is_read() {
    let mut expression = String::from("0 0 * * 1");
    while expression.len() + 2 <= EXPRESSION_MAX_BYTES {
        expression.push_str(",1");
    }
    expression.push(' ');
    assert_eq!(expression.len(), EXPRESSION_MAX_BYTES);
    assert!(Cron::parse(&expression).is_ok());
}

#[test]
fn the_years_searched_at_parse_time_hold_every_kind_of_year() {
    let kind = |year| (date(year, 1, 1).weekday().to_sunday_zero_offset(), date(year, 1, 1).in_leap_year());
    let kinds: BTreeSet<_> = ALL_KINDS_OF_YEAR.map(kind).collect();
    assert_eq!(kinds.len(), 14);
}

#[test]
fn a_day_that_comes_every_forty_years_is_found() {
    // The fifth Monday of February needs a leap year; 2100 is none.
    let [first, second] =
        cron("0 0 * 2 MON#5", "Europe/Paris").next_runs_after(instant("2050-01-01T00:00:00Z"), 2).try_into().unwrap();
    assert_eq!(first.date(), date(2072, 2, 29));
    assert_eq!(second.date(), date(2112, 2, 29));
    let both = cron("0 0 29 2 +MON", "Europe/Paris").next_runs_after(first.timestamp().into(), 1);
    assert_eq!(both[0].date(), date(2112, 2, 29));
}

#[test]
fn either_day_field_is_enough_and_a_plus_asks_for_both() {
    let after = "2024-08-30T12:00:00Z";
    assert_eq!(runs(3, "0 0 13 * FRI", "UTC", after), "09-06 00:00+00, 09-13 00:00+00, 09-20 00:00+00");
    assert_eq!(runs(3, "0 0 13 * +FRI", "UTC", after), "09-13 00:00+00, 12-13 00:00+00, 06-13 00:00+00");
    for not_given in ["*", "?", "*/1"] {
        let fridays = runs(2, &format!("0 0 {not_given} * FRI"), "UTC", after);
        assert_eq!(fridays, "09-06 00:00+00, 09-13 00:00+00", "{not_given}");
    }
}

#[test]
fn different_spellings_of_one_schedule_run_alike() {
    let alike = [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 JAN *"),
        ("@ANNUALLY", "0 0 1 1 ?"),
        ("0 9 * jan-mar,dec mon-fri", " 00\t09  * 1,2,3,12 1-5 "),
        ("0 0 * * FRI-SUN", "0 0 * * 5,6,0"),
        ("0 0 * * SUN-TUE", "0 0 * * 7,1,2"),
        ("0 0 * * SUN-SUN", "0 0 * * 0"),
        // The next three are where croner alone forgets the Sunday written 7.
        ("0 0 * * 7L", "0 0 * * SUNL"),
        ("0 0 * * 6-7#L", "0 0 * * 6L,0L"),
        ("0 0 * * 7#2", "0 0 * * 0#2"),
        ("0 0 * * MON-WED#2", "0 0 * * 1#2,2#2,3#2"),
        ("*/60 */24 * * *", "0 0 * * *"),
        ("5-59/20 * * * *", "5,25,45 * * * *"),
    ];
    for (left, right) in alike {
        let runs = |text| cron(text, "America/New_York").next_runs_after(UNIX_EPOCH, 50);
        assert_eq!(runs(left), runs(right), "{left} and {right}");
    }
}

/// C18
#[test]
fn a_fixed_time_in_a_gap_runs_once_at_its_end() {
    // Paris, 31 March 2024: 02:00 becomes 03:00.
    let after = "2024-03-30T12:00:00Z";
    let once = "03-31 03:00+02, 04-01 02:30+02";
    assert_eq!(runs(2, "30 2 * * *", "Europe/Paris", after), once);
    assert_eq!(runs(2, "0 30 2 * * *", "Europe/Paris", after), once);
    assert_eq!(runs(3, "0,30 2 * * *", "Europe/Paris", after), "03-31 03:00+02, 04-01 02:00+02, 04-01 02:30+02");
}

/// C18
#[test]
fn the_run_at_the_end_of_a_gap_and_a_regular_one_there_are_one() {
    let after = "2024-03-30T12:00:00Z";
    assert_eq!(runs(2, "0 2,3 * * *", "Europe/Paris", after), "03-31 03:00+02, 04-01 02:00+02");
    assert_eq!(
        runs(4, "30 1-3 * * *", "Europe/Paris", after),
        "03-31 01:30+01, 03-31 03:00+02, 03-31 03:30+02, 04-01 01:30+02"
    );
}

/// C18
#[test]
fn minutes_in_steps_with_a_named_hour_run_once_after_a_gap_and_twice_in_an_overlap() {
    assert_eq!(runs(2, "*/30 2 * * *", "Europe/Paris", "2024-03-30T12:00:00Z"), "03-31 03:00+02, 04-01 02:00+02");
    assert_eq!(
        runs(5, "*/30 2 * * *", "Europe/Paris", "2024-10-26T12:00:00Z"),
        "10-27 02:00+02, 10-27 02:30+02, 10-27 02:00+01, 10-27 02:30+01, 10-28 02:00+01"
    );
}

/// C18
#[test]
fn wild_hours_lose_nothing_to_a_gap_and_get_nothing_extra() {
    let after = "2024-03-31T00:45:00Z";
    assert_eq!(runs(3, "*/10 * * * *", "Europe/Paris", after), "03-31 01:50+01, 03-31 03:00+02, 03-31 03:10+02");
    assert_eq!(runs(2, "30 * * * *", "Europe/Paris", after), "03-31 03:30+02, 03-31 04:30+02");
    assert_eq!(runs(2, "0 */2 * * *", "Europe/Paris", after), "03-31 04:00+02, 03-31 06:00+02");
}

/// C18
#[test]
fn a_fixed_time_in_an_overlap_runs_the_first_time_round_only() {
    // Paris, 27 October 2024: 03:00 becomes 02:00.
    let after = "2024-10-26T12:00:00Z";
    assert_eq!(runs(2, "30 2 * * *", "Europe/Paris", after), "10-27 02:30+02, 10-28 02:30+01");
    assert_eq!(
        runs(5, "0,30 2-3 * * *", "Europe/Paris", after),
        "10-27 02:00+02, 10-27 02:30+02, 10-27 03:00+01, 10-27 03:30+01, 10-28 02:00+01"
    );
    // Asked during the second round, the first is over.
    assert_eq!(runs(1, "30 2 * * *", "Europe/Paris", "2024-10-27T01:10:00Z"), "10-28 02:30+01");
}

/// C18
#[test]
fn steps_run_both_times_round_in_an_overlap() {
    let after = "2024-10-27T00:20:00Z";
    let both = "10-27 02:30+02, 10-27 02:00+01, 10-27 02:30+01, 10-27 03:00+01";
    for spelling in ["*/30 * * * *", "0,30 * * * *", "0-59/30 * * * *", "0,30 0-23 * * *"] {
        assert_eq!(runs(4, spelling, "Europe/Paris", after), both, "{spelling}");
    }
    assert_eq!(
        runs(3, "0 */2 * * *", "Europe/Paris", "2024-10-26T23:30:00Z"),
        "10-27 02:00+02, 10-27 02:00+01, 10-27 04:00+01"
    );
    assert_eq!(
        runs(4, "*/30 59 2 * * *", "Europe/Paris", after),
        "10-27 02:59+02, 10-27 02:59:30+02, 10-27 02:59+01, 10-27 02:59:30+01"
    );
}

/// C18
#[test]
fn a_step_that_takes_one_value_is_a_fixed_time() {
    // São Paulo, 4 November 2018: midnight becomes 01:00.
    let after = "2018-11-03T12:00:00Z";
    let expected = "11-04 01:00-02, 11-05 00:00-02";
    assert_eq!(runs(2, "*/60 */24 * * *", "America/Sao_Paulo", after), expected);
    assert_eq!(runs(2, "@daily", "America/Sao_Paulo", after), expected);
}

/// C18
#[test]
fn changes_at_midnight_keep_one_run_a_day() {
    assert_eq!(runs(2, "0 0 * * FRI", "Africa/Cairo", "2024-04-25T12:00:00Z"), "04-26 01:00+03, 05-03 00:00+03");
    // São Paulo, 18 February 2018: Sunday 00:00 becomes Saturday 23:00.
    assert_eq!(runs(2, "30 23 * * *", "America/Sao_Paulo", "2018-02-17T12:00:00Z"), "02-17 23:30-02, 02-18 23:30-03");
    assert_eq!(runs(2, "0 0 * * *", "America/Sao_Paulo", "2018-02-17T12:00:00Z"), "02-18 00:00-03, 02-19 00:00-03");
}

/// C18
#[test]
fn a_gap_that_ends_on_another_day_does_not_lose_the_run() {
    // Nuuk, 30 March 2024: Saturday 23:00 becomes Sunday 00:00.
    assert_eq!(runs(2, "30 23 * * SAT", "America/Nuuk", "2024-03-30T12:00:00Z"), "03-31 00:00-01, 04-06 23:30-01");
}

/// C18
#[test]
fn half_an_hour_is_a_gap_and_an_overlap_too() {
    // Lord Howe: 02:00 becomes 02:30 on 6 October 2024, 02:00 becomes 01:30 on 7 April.
    assert_eq!(runs(2, "15 2 * * *", "Australia/Lord_Howe", "2024-10-05T00:00:00Z"), "10-06 02:30+11, 10-07 02:15+11");
    assert_eq!(
        runs(2, "45 1 * * *", "Australia/Lord_Howe", "2024-04-06T00:00:00Z"),
        "04-07 01:45+11, 04-08 01:45+10:30"
    );
    assert_eq!(
        runs(3, "*/15 * * * *", "Australia/Lord_Howe", "2024-04-06T14:40:00Z"),
        "04-07 01:45+11, 04-07 01:30+10:30, 04-07 01:45+10:30"
    );
}

/// C18
#[test]
fn a_day_that_was_skipped_is_made_up_for_as_the_next_one_begins() {
    // Samoa had no 30 December 2011, which would have been a Friday.
    let after = "2011-12-29T12:00:00Z";
    let nine = "12-29 09:00-10, 12-31 00:00+14, 12-31 09:00+14, 01-01 09:00+14";
    assert_eq!(runs(4, "0 9 * * *", "Pacific/Apia", after), nine);
    assert_eq!(runs(2, "0 0 * * *", "Pacific/Apia", after), "12-31 00:00+14, 01-01 00:00+14");
    let only_then = "12-31 00:00+14, 12-30 09:00+14";
    assert_eq!(runs(2, "0 9 30 12 *", "Pacific/Apia", after), only_then);
    assert_eq!(runs(2, "0 9 * * FRI", "Pacific/Apia", after), "12-31 00:00+14, 01-06 09:00+14");
    assert_eq!(runs(3, "0 */12 * * *", "Pacific/Apia", after), "12-29 12:00-10, 12-31 00:00+14, 12-31 12:00+14");
}

#[test]
fn changes_of_standard_time_follow_the_same_rules() {
    // Kathmandu skipped 15 minutes as 1986 began; Pyongyang repeated 30 in 2015.
    assert_eq!(runs(2, "5 0 * * *", "Asia/Kathmandu", "1985-12-31T12:00:00Z"), "01-01 00:15+05:45, 01-02 00:05+05:45");
    assert_eq!(runs(2, "45 23 * * *", "Asia/Pyongyang", "2015-08-14T12:00:00Z"), "08-14 23:45+09, 08-15 23:45+08:30");
    // Alaska went back a whole day in 1867, on the afternoon of 19 October.
    assert_eq!(
        runs(2, "0 12 * * *", "America/Juneau", "1867-10-18T12:00:00Z"),
        "10-19 12:00+15:02:19, 10-20 12:00-08:57:41"
    );
}

/// C18
#[test]
fn the_next_run_is_strictly_after_the_instant_asked_about() {
    let gap_end = instant("2024-03-31T01:00:00Z");
    let fixed = cron("30 2 * * *", "Europe/Paris");
    assert_eq!(fixed.next_after(gap_end - Duration::from_nanos(1)), Some(gap_end));
    assert_eq!(fixed.next_after(gap_end - Duration::from_secs(1)), Some(gap_end));
    assert_eq!(fixed.next_after(gap_end), Some(instant("2024-04-01T00:30:00Z")));
    assert_eq!(fixed.next_after(gap_end + Duration::from_nanos(1)), Some(instant("2024-04-01T00:30:00Z")));

    let every_second = cron("* * * * * *", "UTC");
    let nanosecond = Duration::from_nanos(1);
    let second = Duration::from_secs(1);
    assert_eq!(every_second.next_after(UNIX_EPOCH - nanosecond), Some(UNIX_EPOCH));
    assert_eq!(every_second.next_after(UNIX_EPOCH - second), Some(UNIX_EPOCH));
    assert_eq!(every_second.next_after(UNIX_EPOCH - second - nanosecond), Some(UNIX_EPOCH - second));
    assert_eq!(every_second.next_after(UNIX_EPOCH), Some(UNIX_EPOCH + second));
}

#[test]
fn there_is_a_run_after_any_instant_before_the_year_5000() {
    for zone in ["UTC", "Europe/Paris", "Pacific/Apia"] {
        let yearly = cron("@yearly", zone);
        let last = yearly.next_after(instant("4998-06-01T00:00:00Z")).unwrap();
        assert_eq!(Timestamp::try_from(last).unwrap().to_zoned(yearly.zone.clone()).year(), 4999);
        assert_eq!(yearly.next_after(last), None);
        assert_eq!(yearly.next_after(instant("9999-12-30T00:00:00Z")), None);
        assert_eq!(cron("* * * * *", zone).next_after(instant("5000-06-01T00:00:00Z")), None);
        let first = yearly.next_after(Timestamp::MIN.into()).unwrap();
        assert_eq!(yearly.next_runs_after(first, 3).len(), 3);
    }
    let century = Duration::from_secs(100 * 365 * 86_400);
    if let Some(unthinkable) = UNIX_EPOCH.checked_add(century * 1000) {
        assert_eq!(cron("@daily", "UTC").next_after(unthinkable), None);
    }
    if let Some(unthinkable) = UNIX_EPOCH.checked_sub(century * 1000) {
        assert!(cron("@daily", "UTC").next_after(unthinkable).is_some());
    }
}

#[test]
fn an_unknown_zone_is_an_error_that_names_it() {
    for name in ["Mars/Olympus", "", "+02:00", "Etc/Unknown", "../etc/passwd"] {
        let error = Cron::parse("@daily").unwrap().in_zone(name).unwrap_err();
        let expected = format!(r#"unknown time zone {name:?}: an IANA name such as "Europe/Paris" is needed"#);
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.field(), None);
    }
}

#[test]
fn what_is_displayed_can_be_read_back() {
    let nine = cron("0 9 * * MON-FRI", "europe/paris");
    assert_eq!(nine.to_string(), "0 9 * * MON-FRI in Europe/Paris");
    assert_eq!(nine.to_string().parse(), Ok(nine.clone()));
    assert_eq!(format!("{nine:?}"), "Cron(0 9 * * MON-FRI in Europe/Paris)");
    assert_eq!((nine.expression(), nine.zone()), ("0 9 * * MON-FRI", "Europe/Paris"));
    assert_eq!("@daily".parse(), Cron::parse("@daily"));
    assert_ne!(nine, cron("0 9 * * MON-FRI", "Europe/Berlin"));
    assert!("@daily in ".parse::<Cron>().is_err());
    assert!("@daily in Atlantis".parse::<Cron>().is_err());
}

/// One field of a random expression, with its own idea of what it matches.
#[derive(Clone, Debug)]
enum Part {
    Star,
    Every(i8),
    List(Vec<i8>),
    Range(i8, i8, i8),
}

impl Part {
    fn text(&self) -> String {
        match self {
            Self::Star => "*".to_owned(),
            Self::Every(step) => format!("*/{step}"),
            Self::List(values) => values.iter().map(i8::to_string).collect::<Vec<_>>().join(","),
            Self::Range(low, high, 1) => format!("{low}-{high}"),
            Self::Range(low, high, step) => format!("{low}-{high}/{step}"),
        }
    }

    fn has(&self, value: i8, min: i8) -> bool {
        match self {
            Self::Star => true,
            Self::Every(step) => (value - min) % step == 0,
            Self::List(values) => values.contains(&value),
            Self::Range(low, high, step) => (*low..=*high).contains(&value) && (value - low) % step == 0,
        }
    }

    /// For the time fields, which start at 0.
    fn is_wild(&self, max: i8) -> bool {
        match self {
            Self::Star => true,
            Self::Every(step) => *step <= max,
            Self::List(_) => false,
            Self::Range(low, high, step) => *low == 0 && *high == max && *step <= max,
        }
    }

    fn any(min: i8, max: i8) -> impl Strategy<Value = Self> {
        let value = min..=max;
        prop_oneof![
            Just(Self::Star),
            (1..=(max - min + 1)).prop_map(Self::Every),
            vec(value.clone(), 1..4).prop_map(Self::List),
            (value.clone(), value, 1..=max).prop_map(|(a, b, step)| Self::Range(a.min(b), a.max(b), step)),
        ]
    }
}

#[derive(Clone, Debug)]
struct Spec {
    seconds: Option<Part>,
    minutes: Part,
    hours: Part,
    days: Part,
    weekdays: Part,
}

impl Spec {
    fn text(&self) -> String {
        let seconds = self.seconds.as_ref().map_or(String::new(), |seconds| seconds.text() + " ");
        let [minutes, hours, days, weekdays] = [&self.minutes, &self.hours, &self.days, &self.weekdays].map(Part::text);
        format!("{seconds}{minutes} {hours} {days} * {weekdays}")
    }

    fn matches(&self, civil: DateTime) -> bool {
        let second = match &self.seconds {
            Some(seconds) => seconds.has(civil.second(), 0),
            None => civil.second() == 0,
        };
        second
            && self.minutes.has(civil.minute(), 0)
            && self.hours.has(civil.hour(), 0)
            && self.matches_day(civil.date())
    }

    fn matches_day(&self, day: Date) -> bool {
        let by_date = self.days.has(day.day(), 1);
        let by_weekday = self.weekdays.has(day.weekday().to_sunday_zero_offset(), 0);
        match (self.days.text().as_str(), self.weekdays.text().as_str()) {
            ("*" | "*/1", "*" | "*/1") => true,
            ("*" | "*/1", _) => by_weekday,
            (_, "*" | "*/1") => by_date,
            _ => by_date || by_weekday,
        }
    }

    fn is_wild(&self) -> bool {
        let seconds = self.seconds.as_ref().is_some_and(|seconds| seconds.is_wild(59));
        seconds || self.minutes.is_wild(59) || self.hours.is_wild(23)
    }

    fn any() -> impl Strategy<Value = Self> {
        // Clocks change at night, and days are rarely restricted, so that many specs have runs near the change.
        let night = vec(select(vec![0, 1, 2, 3, 22, 23]), 1..4).prop_map(Part::List);
        let hours = prop_oneof![Part::any(0, 23), night];
        let days = prop_oneof![3 => Just(Part::Star), 1 => Part::any(1, 31)];
        let weekdays = prop_oneof![3 => Just(Part::Star), 1 => Part::any(0, 6)];
        let seconds = prop_oneof![4 => Just(None), 1 => Part::any(0, 59).prop_map(Some)];
        (seconds, Part::any(0, 59), hours, days, weekdays).prop_map(|(seconds, minutes, hours, days, weekdays)| Self {
            seconds,
            minutes,
            hours,
            days,
            weekdays,
        })
    }
}

/// All runs in `from..to`, found by looking at the wall clock of every minute (or second): what did it show, had it
/// shown that before, and what did it never show?
fn runs_by_looking(spec: &Spec, zone: &TimeZone, from: i64, to: i64, step: i64) -> Vec<i64> {
    let mut runs = Vec::new();
    let mut shown = HashSet::new();
    let mut expected: Option<DateTime> = None;
    for second in (from..to).step_by(usize::try_from(step).unwrap()) {
        let civil = zone.to_datetime(Timestamp::from_second(second).unwrap());
        let mut due = false;
        let mut missing = expected.unwrap_or(civil);
        while missing < civil {
            due |= spec.matches(missing) && !spec.hours.is_wild(23);
            missing += SignedDuration::from_secs(step);
        }
        let first_time_round = shown.insert(civil);
        due |= spec.matches(civil) && (first_time_round || spec.is_wild());
        if due {
            runs.push(second);
        }
        expected = Some(civil + SignedDuration::from_secs(step));
    }
    runs
}

const ZONES: [&str; 18] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/New_York",
    "America/Nuuk",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Dublin",
    "Europe/Paris",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "UTC",
];

/// An instant at which the zone changes its offset, or any one if it never does.
fn change_of(zone: &TimeZone, pick: usize) -> i64 {
    let offset = |second: i64| zone.to_offset(Timestamp::from_second(second).unwrap());
    let changes: Vec<i64> = zone
        .following(Timestamp::from_second(70_000_000).unwrap())
        .map(|change| change.timestamp().as_second())
        .take_while(|second| *second < 2_500_000_000)
        .filter(|second| offset(*second) != offset(second - 1))
        .collect();
    let any = 1_700_000_040;
    changes.get(pick % changes.len().max(1)).copied().unwrap_or(any)
}

const TIME: &str = "([*]|[0-9]|[1-4]-[5-9]|[*]/[1-9])(,[0-9])?";
const DAY: &str = "([*?L]|[1-9]W?|[1-3][0-9]|[1-4]-[5-9]|[*]/[1-9]|LW)(,[1-9])?";
const MONTH: &str = "([*]|[1-9]|1[0-3]|feb|[aA]pr-Jun)";
const WEEKDAY: &str = "([+]?([*?]|[0-8]|SUN|[0-7](#[1-5L]|L)|5-7#[2L]|fri-sun)(,[0-6]L?)?)";

proptest! {
    #![proptest_config(crate::model::cases(160))]

    /// C18
    #[test]
    fn runs_around_a_clock_change_are_those_found_by_looking_at_the_clock(
        spec in Spec::any(), zone in select(&ZONES), pick in 0_usize..1000, after_ns in any::<u64>(),
    ) {
        let cron = cron(&spec.text(), zone);
        let change = change_of(&cron.zone, pick);
        let (reach, step) = if spec.seconds.is_some() { (4 * 3600, 1) } else { (40 * 3600, 60) };
        let (from, to) = (change - reach, change + reach);
        let expected = runs_by_looking(&spec, &cron.zone, from, to, step);

        let before = Timestamp::from_second(from - 1).unwrap();
        let found: Vec<i64> = std::iter::successors(cron.next(before), |run| cron.next(*run))
            .map(Timestamp::as_second)
            .take_while(|run| *run < to)
            .collect();
        // The first difference says it all; the lists are long.
        let differs = (0..=expected.len()).find(|at| found.get(*at) != expected.get(*at));
        let shown = |runs: &[i64]| {
            differs.and_then(|at| runs.get(at)).map(|run| {
                Timestamp::from_second(*run).unwrap().to_zoned(cron.zone.clone()).to_string()
            })
        };
        prop_assert_eq!(shown(&found), shown(&expected), "{}", cron);

        let after = Duration::from_nanos(after_ns % (2 * reach.unsigned_abs() * 1_000_000_000));
        let after = SystemTime::from(Timestamp::from_second(from).unwrap()) + after;
        let next = expected.iter().map(|run| SystemTime::from(Timestamp::from_second(*run).unwrap()));
        if let Some(next) = next.into_iter().find(|run| *run > after) {
            prop_assert_eq!(cron.next_after(after), Some(next), "{} after {:?}", cron, after);
        }
    }

    #[test]
    fn days_are_those_found_by_leafing_through_the_calendar(
        day in MonthDay::any(), month in Part::any(1, 12), weekday in WeekDay::any(), both in any::<bool>(),
        year in 1990_i16..2090,
    ) {
        let plus = if both { "+" } else { "" };
        let text = format!("0 0 {} {} {plus}{}", day.text(), month.text(), weekday.text());
        let either = !both && !day.is_star() && !weekday.is_star();
        let matches = |date: &Date| {
            month.has(date.month(), 1)
                && if either {
                    day.has(*date) || weekday.has(*date)
                } else {
                    day.has(*date) && weekday.has(*date)
                }
        };
        let days = |from: i16, years: i16| {
            let end = date(from + years, 1, 1);
            date(from, 1, 1).series(1.day()).take_while(move |day| *day < end)
        };
        let Ok(cron) = Cron::parse(&text) else {
            prop_assert_eq!(days(1980, 41).find(matches), None, "{} was refused", text);
            return Ok(());
        };
        let expected: Vec<Date> = days(year, 2).filter(matches).collect();
        let before = date(year, 1, 1).to_zoned(TimeZone::UTC).unwrap().timestamp() - SECOND;
        let found = cron.next_runs_after(before.into(), expected.len() + 1);
        let mut found: Vec<Date> = found.iter().map(Zoned::date).collect();
        prop_assert!(found.pop().unwrap().year() >= year + 2, "{}", text);
        prop_assert_eq!(found, expected, "{}", text);
    }

    #[test]
    fn any_text_is_either_refused_or_has_a_run(
        text in prop_oneof![
            string_regex(&format!("{TIME} ({TIME} ){{1,2}}{DAY} {MONTH} {WEEKDAY}")).unwrap(),
            string_regex(&format!("({TIME} |{DAY} |{MONTH} |{WEEKDAY} ?){{5,6}}")).unwrap(),
            "([-0-9*/,LW#?+@]{1,4} ){4,6}",
            ".{0,300}",
        ],
    ) {
        if let Ok(cron) = Cron::parse(&text) {
            prop_assert!(cron.next_after(UNIX_EPOCH) > Some(UNIX_EPOCH));
            prop_assert_eq!(cron.to_string().parse(), Ok(cron));
        }
    }
}

/// A random day-of-month field, with its own idea of `L`, `LW` and `W`.
#[derive(Clone, Debug)]
enum MonthDay {
    Plain(Part),
    Last,
    LastWeekday,
    Nearest(i8),
}

impl MonthDay {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            3 => Part::any(1, 31).prop_map(Self::Plain),
            1 => Just(Self::Last),
            1 => Just(Self::LastWeekday),
            2 => (1_i8..=31).prop_map(Self::Nearest),
        ]
    }

    fn text(&self) -> String {
        match self {
            Self::Plain(part) => part.text(),
            Self::Last => "L".to_owned(),
            Self::LastWeekday => "LW".to_owned(),
            Self::Nearest(day) => format!("{day}w"),
        }
    }

    fn is_star(&self) -> bool {
        matches!(self.text().as_str(), "*" | "*/1")
    }

    fn has(&self, date: Date) -> bool {
        let works = |date: &Date| !matches!(date.weekday(), Weekday::Saturday | Weekday::Sunday);
        let month = || date.first_of_month().series(1.day()).take_while(|day| day.month() == date.month());
        match self {
            Self::Plain(part) => part.has(date.day(), 1),
            Self::Last => month().last() == Some(date),
            Self::LastWeekday => month().filter(works).last() == Some(date),
            Self::Nearest(day) => {
                let Some(wanted) = month().find(|other| other.day() == *day) else {
                    return false;
                };
                let distance = |other: &Date| (other.day() - wanted.day()).abs();
                month().filter(works).min_by_key(distance) == Some(date)
            }
        }
    }
}

/// A random day-of-week field, with its own idea of `#` and `L`.
#[derive(Clone, Debug)]
enum WeekDay {
    Plain(Part),
    Nth(i8, usize),
    Last(i8),
}

impl WeekDay {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            3 => Part::any(0, 6).prop_map(Self::Plain),
            1 => (0_i8..=7, 1_usize..=5).prop_map(|(day, nth)| Self::Nth(day, nth)),
            1 => (0_i8..=7).prop_map(Self::Last),
        ]
    }

    fn text(&self) -> String {
        match self {
            Self::Plain(part) => part.text(),
            Self::Nth(day, nth) => format!("{day}#{nth}"),
            Self::Last(day) => format!("{day}L"),
        }
    }

    fn is_star(&self) -> bool {
        matches!(self.text().as_str(), "*" | "*/1")
    }

    fn has(&self, date: Date) -> bool {
        let number = date.weekday().to_sunday_zero_offset();
        let same = |other: &Date| other.weekday() == date.weekday() && other.month() == date.month();
        let month = || date.first_of_month().series(1.day()).take(31).filter(same);
        match self {
            Self::Plain(part) => part.has(number, 0),
            Self::Nth(day, nth) => day % 7 == number && month().nth(nth - 1) == Some(date),
            Self::Last(day) => day % 7 == number && month().last() == Some(date),
        }
    }
}
