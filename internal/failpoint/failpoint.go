// Package failpoint marks places where a crash is worth testing. Built with the tag "failpoints", a process kills itself at
// the place named in its environment; otherwise the marks cost nothing. Names are PACKAGE.after-WHAT or PACKAGE.before-WHAT,
// given as literals so that tests find them all in the source.
//
// NEARMETAL_FAILPOINT=NAME kills every process that comes by NAME, NAME:N at the Nth time. NEARMETAL_FAILPOINT_DIR=DIR lets a test
// choose while processes run, and kills one only: whoever comes by NAME while there is a file DIR/NAME renames it to
// DIR/NAME.PID, with its own process ID, and dies.
package failpoint
