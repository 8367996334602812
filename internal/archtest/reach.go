package archtest

import (
	"slices"
	"strings"
)

// exception allows a package that planners import some names of an impure package.
type exception struct {
	dir, pkg string
	names    []string
}

var exceptions = []exception{
	// Types in the contract of executors. Planners use only the data types beside it.
	{"internal/driver", "net", []string{"Conn", "Listener"}},
	// It parses text.
	{"internal/fabric", "net", []string{"ParseMAC"}},
	// Keys come from a secret and the time is an argument, so certificates are the same each time. Of the package's names that draw random
	// numbers, read the clock or connect, such as MarshalPrivateKey, none is allowed.
	{"internal/sshca", "golang.org/x/crypto/ssh", []string{
		"CertTimeInfinity", "Certificate", "CryptoPublicKey", "HostCert", "KeyAlgoECDSA256", "KeyAlgoECDSA384", "KeyAlgoECDSA521", "KeyAlgoED25519",
		"KeyAlgoRSA", "KeyAlgoSKECDSA256", "KeyAlgoSKED25519", "Marshal", "MarshalAuthorizedKey", "NewPublicKey", "NewSignerFromKey",
		"ParseAuthorizedKey", "Permissions", "PublicKey", "Signer", "UserCert",
	}},
}

// reach follows the imports of planners through this module.
type reach struct {
	sources map[string][]*File // by folder, without tests
	report  reporter
	// said holds what was reported, by the folders of planner and package.
	said   map[string]bool
	needed map[string]bool
}

// checkReach reports impure packages of this module that a planner imports by way of others.
func checkReach(files []*File, report reporter) {
	r := reach{
		sources: byDir(slices.DeleteFunc(slices.Clone(files), func(f *File) bool { return f.Test })),
		report:  report, said: map[string]bool{}, needed: map[string]bool{},
	}
	for _, f := range files {
		if !f.Test && isPlanner(f) {
			for name, line := range f.Imports {
				r.follow(f, line, name, name, map[string]bool{f.Dir: true})
			}
		}
	}
	for _, e := range exceptions {
		if len(r.sources[e.dir]) > 0 && !r.needed[e.dir+" "+e.pkg] {
			report(e.dir, 0, "no planner needs the exception for %s any more; remove it from the list", e.pkg)
		}
	}
}

// follow reports what is impure in a package that planner imports on a line, and in all that the package imports. way names the packages
// on the way to it.
func (r *reach) follow(planner *File, line int, name, way string, seen map[string]bool) {
	dir := strings.TrimPrefix(name, "./")
	if dir == name || seen[dir] {
		return
	}
	seen[dir] = true
	for _, f := range r.sources[dir] {
		if isPlanner(f) {
			continue // it is checked for itself
		}
		for _, i := range impurities(f) {
			key := planner.Dir + " " + dir + " " + i.what
			if !r.excepted(f, i) && !r.said[key] {
				r.said[key] = true
				r.report(planner.Path, line, "a planner imports %s, which %s in %s", way, i.what, f.Path)
			}
		}
		for next := range f.Imports {
			r.follow(planner, line, next, way+", which imports "+next, seen)
		}
	}
}

// excepted reports whether an exception allows all names that a file uses of an impure package.
func (r *reach) excepted(f *File, i impurity) bool {
	for _, e := range exceptions {
		if e.dir != f.Dir || e.pkg != i.pkg {
			continue
		}
		r.needed[e.dir+" "+e.pkg] = true
		for name := range f.Uses(i.pkg) {
			if !slices.Contains(e.names, name) {
				return false
			}
		}
		return true
	}
	return false
}
