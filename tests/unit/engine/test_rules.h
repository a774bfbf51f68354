// Test-only rules, so that the engine's behaviour does not depend on the real ones.
//   CG001 always          reports every graph (warning, certain), needs nodes
//   CG002 needs-edges     reports every graph that has edges
//   CG003 either          needs edges, or replay_streams
//   CG004 hesitant        reports with confidence `possible`
//   CG005 limited         opt-in by max_streams, an error
//   CG006 cause           reports every graph and explains CG001
//   CG007 late-doubt      declares satisfied needs, then says not checked
//   CG008 retired         status removed: never runs
//   CG009 twice           reports two occurrences of one pattern
//   CG010 gathers         scope recording: reports once, on the last graph with edges, how many nodes it saw; explains CG002
#pragma once
