#!/usr/bin/env python3
"""What anonymous.py lets pass and what not, on reports made up for it."""
import unittest

import anonymous

UNKNOWN = "the accesses of some kernels are not known (no signature, no entry in the kernel table, not measured)"


def finding(code: str, confidence: str = "likely", **evidence) -> dict:
    return {"code": code, "severity": "warning", "confidence": confidence, "evidence": evidence, "occurrence_count": 1, "primary": [{"id": 3}], "message": ""}


def report(*findings, unchecked=()) -> dict:
    return {"findings": list(findings), "not_checked": [{"code": code, "reason": reason} for code, reason in unchecked], "errors": [], "inputs": [{}]}


def problem(plain: dict, anonymous_report: dict) -> str | None:
    return anonymous.compare(plain, anonymous_report, lambda: anonymous_report)


class Compare(unittest.TestCase):
    def test_the_same_passes(self):
        self.assertIsNone(problem(report(finding("CG301")), report(finding("CG301"))))

    def test_rules_that_need_no_names_have_to_look(self):
        for code in ("CG101", "CG102", "CG104", "CG201", "CG202", "CG204", "CG301", "CG302", "CG404", "CG804"):
            with self.subTest(code):
                self.assertIn("not checked any more", problem(report(finding(code)), report(unchecked=[(code, UNKNOWN)])))
                self.assertIn("not checked any more", problem(report(), report(unchecked=[(code, UNKNOWN)])))
                self.assertIn("findings differ", problem(report(finding(code)), report()))

    def test_a_rule_that_did_not_look_at_all_places_before_keeps_what_it_found(self):
        partly = [("CG301", "3 zero argument words may be null addresses")]
        more = [("CG301", "29 zero argument words may be null addresses")]
        self.assertIsNone(problem(report(finding("CG301"), unchecked=partly), report(finding("CG301"), unchecked=more)))
        self.assertIn("findings differ", problem(report(finding("CG301"), unchecked=partly), report(unchecked=more)))

    def test_rules_about_accesses_may_turn_to_not_checked_for_that_reason_alone(self):
        for code in ("CG203", "CG401", "CG601", "CG602"):
            with self.subTest(code):
                self.assertIsNone(problem(report(finding(code)), report(unchecked=[(code, UNKNOWN)])))
                self.assertIn("findings differ", problem(report(finding(code)), report()))
                self.assertIn("not checked any more", problem(report(finding(code)), report(unchecked=[(code, "the input has no dependency edges")])))

    def test_what_is_measured_or_stated_stays(self):
        for code in ("CG401", "CG601", "CG602"):
            self.assertIn("findings differ", problem(report(finding(code, "certain")), report(unchecked=[(code, UNKNOWN)])))

    def test_pdl_lost_stays_but_for_joins_that_nothing_needs(self):
        gone = report(unchecked=[("CG501", UNKNOWN)])
        self.assertIsNone(problem(report(finding("CG501", cause="join", uses_what_it_joins="no")), gone))
        self.assertIn("findings differ", problem(report(finding("CG501", cause="join", uses_what_it_joins="unknown")), gone))
        self.assertIn("findings differ", problem(report(finding("CG501", cause="node_between")), gone))

    def test_launches_during_a_capture_are_found_without_names(self):
        gone = report(unchecked=[("CG402", "no kernel's name tells its part or its arguments in 1 graph, so that fills cannot be told")])
        self.assertIsNone(problem(report(finding("CG402", launches_outside=6)), gone))
        self.assertIn("findings differ", problem(report(finding("CG402", "certain")), gone))

    def test_nothing_is_new_and_nothing_is_surer(self):
        self.assertIn("findings differ", problem(report(), report(finding("CG203"), unchecked=[("CG203", UNKNOWN)])))
        self.assertIn("findings differ", problem(report(finding("CG302", "likely")), report(finding("CG302", "certain"))))


if __name__ == "__main__":
    unittest.main()
