//! The conformance suite: every rule of `docs/design/store.md`, each a case with a sentence for a name.
//!
//! [`store_suite_tests!`](crate::store_suite_tests) makes one test of each, for a function that opens a fresh store. A
//! bug found in one store becomes a case here, for all.

pub mod claiming;
pub mod enqueueing;
pub mod finishing;
pub mod looking;
pub mod nodes;
pub mod scheduling;
pub mod states;
pub mod tenancy;

/// One test per case, and [random histories](crate::histories), for `open: fn(&VirtualClock) -> Bed`; 100 histories,
/// unless another number is given, for a store that takes seconds for one.
#[macro_export]
macro_rules! store_suite_tests {
    ($open:ident) => {
        $crate::store_suite_tests! { $open, 100 }
    };
    ($open:ident, $histories:literal) => {
        $crate::store_suite_tests! { @rooms $open;
            claiming {
                a_claim_numbers_the_run
                an_unknown_node_gets_nothing
                a_claim_of_an_era_that_is_over_gets_nothing
                jobs_of_a_tenant_come_by_due_and_arrival
                a_priority_step_counts_like_thirty_seconds
                nothing_is_given_out_before_it_is_due
                tenants_of_a_batch_come_in_the_order_of_the_batch
                other_kinds_stay_where_they_are
                a_claim_keeps_to_the_room_of_each_kind
                a_tenant_never_runs_more_than_it_may
                limits_change_while_jobs_run
                a_paused_tenant_starts_nothing_and_holds_nobody_back
                a_rate_holds_over_time
                only_a_rate_makes_a_claim_come_back
                tenants_share_by_weight_and_cost
                an_idle_tenant_banks_no_credit_and_a_newcomer_waits_for_nobody
                jobs_with_a_last_chance_run_one_at_a_time
                a_new_priority_counts_at_the_next_claim
                tenants_of_a_slow_kind_take_turns_beside_a_fast_one
            }
            enqueueing {
                a_job_is_kept_as_it_was_given
                a_known_id_is_answered_as_new_and_changes_nothing
                a_job_with_too_long_a_word_is_refused_alone
                a_closed_tenant_takes_nothing
                a_job_that_could_not_start_in_time_is_refused
                a_date_in_the_past_is_due_at_once
                the_backlog_bound_is_exact
                without_a_running_limit_only_what_waits_counts
                a_paused_tenant_has_no_room_for_running
                the_scheduled_bound_is_exact_and_apart
                a_place_is_free_as_soon_as_its_job_is_not_wanted
                a_refusal_by_a_rated_tenant_says_when_to_come_back
                each_item_of_a_batch_is_answered_for_itself
                a_unique_key_is_taken_while_its_job_is_live
                the_first_of_a_batch_has_the_key
                a_unique_key_is_kept_over_a_retry
                a_unique_key_is_free_when_its_job_expires
                a_period_holds_the_key_beyond_the_end
                join_gives_the_one_that_is_there_even_if_the_tenant_is_full
                replace_cancels_the_one_that_waits
                replace_is_admitted_as_if_the_other_were_gone
                a_wanted_job_is_cancelled_when_its_last_node_lets_go
                a_running_job_that_nobody_wants_is_told_to_stop
                letting_go_of_a_plain_job_changes_nothing
                whoever_joins_a_wanted_job_wants_it_too
                a_wanted_job_of_an_unknown_node_is_cancelled_at_once
            }
            finishing {
                a_result_is_kept
                a_failure_is_kept
                a_stale_run_changes_nothing
                a_batch_of_finishes_is_answered_one_by_one
                a_retry_waits_and_counts
                a_retry_beyond_the_deadline_fails_instead
                a_snooze_gives_the_attempt_back
                a_release_gives_the_attempt_and_the_place_in_line_back
                cancelling_what_waits_ends_it
                cancelling_what_runs_settles_it
                what_waits_expires_on_time
                a_scheduled_job_expires_by_an_earlier_deadline
                what_runs_past_its_deadline_is_settled
                a_result_at_the_deadline_is_late
                an_edit_changes_what_waits
                an_edit_can_let_a_job_expire
                a_redriven_job_starts_anew
                cancelled_and_expired_jobs_can_be_redriven
                a_redriven_job_needs_its_unique_key
                a_redriven_job_does_not_depend_on_interest
            }
            looking {
                a_query_goes_through_all_jobs_in_pages
                a_query_finds_by_every_mark
                a_query_sees_what_time_brought
                explain_names_the_first_gate
                pruning_forgets_by_outcome_and_age
                pruning_forgets_the_oldest_first
                pruning_does_not_free_a_key_that_its_period_holds
                purging_forgets_what_has_ended
            }
            nodes {
                a_node_that_leaves_gives_its_runs_back
                nodes_are_listed_with_what_they_run
                a_heartbeat_brings_news_of_the_node
                a_lost_run_is_ready_again_with_its_crash_counted
                a_job_that_kills_its_process_too_often_fails
                a_crash_gives_the_permits_back
                a_lease_lasts_while_the_node_beats
                a_late_heartbeat_before_the_reaper_keeps_the_lease
                interest_ends_with_the_lease
                a_node_whose_lease_has_ended_handles_nothing
                tend_says_when_to_come_back
            }
            scheduling {
                a_schedule_is_kept
                a_schedule_with_too_long_a_name_is_refused
                a_tick_fires_once
                a_paused_or_removed_schedule_does_not_fire
                a_schedule_rests_while_its_last_job_is_live
                missed_ticks_are_counted
                a_refused_tick_is_missed_and_the_series_goes_on
                a_tick_that_joins_has_the_others_job
                the_same_rule_keeps_its_place
                tend_names_the_ticks_that_have_come
                erasing_a_tenant_removes_its_schedules
                a_tick_may_be_fired_ahead
            }
            states {
                every_operation_in_every_state_does_what_the_table_says
            }
            tenancy {
                a_policy_is_kept
                numbers_are_kept_by_tenant
                tenants_with_a_policy_or_jobs_are_listed
                cancelling_a_tenant_cancels_all_of_it
                a_change_of_one_thing_leaves_the_others
                an_erased_tenant_is_forgotten
                erasing_twice_is_harmless
            }
        }

        /// C53, C58
        #[test]
        fn random_histories_are_those_of_the_model() {
            $crate::histories::compare($open, $histories);
        }
    };
    (@rooms $open:ident; $($room:ident { $($case:ident)* })*) => {
        $(mod $room {
            $(#[test]
            fn $case() {
                let clock = punctual::VirtualClock::new();
                let bed = super::$open(&clock);
                $crate::store_suite::$room::$case(&bed);
                bed.assert_totals_are_true();
            })*
        })*
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A case that no store runs proves nothing.
    /// C53
    #[test]
    fn every_case_is_in_the_list() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let list = read(&sources.join("store_suite.rs"));
        let listed: BTreeSet<&str> = list.split_whitespace().collect();
        let mut cases = 0;
        for entry in std::fs::read_dir(sources.join("store_suite")).unwrap() {
            let text = read(&entry.unwrap().path());
            for line in text.lines().filter(|line| line.ends_with("(bed: &Bed) {")) {
                let Some(name) = line.strip_prefix("pub fn ").and_then(|rest| rest.split('(').next()) else { continue };
                assert!(listed.contains(name), "{name} is not in the list of store_suite_tests!");
                cases += 1;
            }
        }
        assert!(cases > 90, "{cases}");
    }
}
