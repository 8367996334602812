// Package failpoint marks places where a crash is worth testing. Built with the tag "failpoints", a process kills itself at
// the place named in its environment; otherwise the marks cost nothing. Names are PACKAGE.after-WHAT or PACKAGE.before-WHAT,
// given as literals so that tests find them all in the source.
package failpoint
