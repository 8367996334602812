// Package webcache runs caches of files at web servers: nginx, which fetches and keeps blocks of them.
//
// A cache knows the URL of each of its files, and answers for nothing else. It listens at a socket in a directory that only root enters, so that this program
// decides who reaches it. The configuration is a pure text (this file), process.go runs it, and counters.go adds up what it reports of each block. The package
// must never decide which files a member may read. Start with Start.
package webcache

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// Config is a cache of some files.
type Config struct {
	// Base is the cache's own directory: an absolute path. What is cached stays there.
	Base string
	// SizeBytes is what it may hold: beyond that, blocks that were not read for the longest time go.
	SizeBytes int64
	// BlockBytes is what is fetched at once.
	BlockBytes int64
	Files      []File
	// Authorization is the header with which files are fetched (RFC 9110, section 11.6.2); empty: there is none. Readers never see it.
	Authorization string
	// Authorities is a file with the certificates of the authorities that sources' certificates must come from; empty: those that the host trusts.
	Authorities string
	// PatienceSeconds is how long a source may send nothing until readers get an error; 0: a minute.
	PatienceSeconds int
}

// File is a file of a cache.
type File struct {
	// Path is where readers find it, and URL where it is fetched from.
	Path, URL string
}

// plainPath and plainURL are those that mean nothing else in nginx's configuration.
var (
	plainPath = regexp.MustCompile(`^/[A-Za-z0-9._/+=,@~:-]+$`)
	plainURL  = regexp.MustCompile(`^https?://[A-Za-z0-9.-]+(:[0-9]+)?/[A-Za-z0-9._/+=,@~:%?&-]+$`)
	// plainValue is what a header of HTTP can hold that nginx takes as it is.
	plainValue = regexp.MustCompile(`^[A-Za-z]+ [A-Za-z0-9._~+/=-]+$`)
)

// Plain reports whether a cache can be told of a file.
func Plain(f File) bool { return plainPath.MatchString(f.Path) && plainURL.MatchString(f.URL) }

const (
	leastBlock, largeBlock = 4 << 10, 512 << 20
	// keyBytes is what nginx needs in memory for each block (ngx_http_proxy_module, "keys_zone": 8,000 keys in a megabyte).
	keyBytes = 1 << 20 / 8000
	// hostAuthorities is Debian's (package ca-certificates).
	hostAuthorities = "/etc/ssl/certs/ca-certificates.crt"
	defaultPatience = 60
)

// Validate returns what is wrong with a cache's configuration.
func (c Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Base) || len(c.Files) == 0 {
		errs = append(errs, fmt.Errorf("a cache of %d files in %q: it needs files, and an absolute path", len(c.Files), c.Base))
	}
	if c.BlockBytes < leastBlock || c.BlockBytes > largeBlock || c.SizeBytes < 8*c.BlockBytes {
		errs = append(errs, fmt.Errorf("a cache of %d B with blocks of %d B: blocks have from 4 KiB to 512 MiB, and a cache holds 8 of them", c.SizeBytes, c.BlockBytes))
	}
	for _, f := range c.Files {
		if !Plain(f) {
			errs = append(errs, fmt.Errorf("%s at %q is no file that nginx's configuration can have", f.URL, f.Path))
		}
	}
	if c.Authorization != "" && !plainValue.MatchString(c.Authorization) {
		errs = append(errs, errors.New("the credential has characters that a cache can't send"))
	}
	if strings.ContainsAny(c.Authorities, " \t\n;\"'") {
		errs = append(errs, fmt.Errorf("%q is no path that nginx's configuration can have", c.Authorities))
	}
	return errors.Join(errs...)
}

// Names below a cache's directory.
const (
	dirStore    = "store"
	fileConfig  = "nginx.conf"
	fileLog     = "log"
	fileDoor    = "door"
	fileReports = "reports"
)

// place is where the server sees its Base: a directory of Debian's package, at which it has further files of its own.
const place = "/var/lib/nginx"

// text is the cache's configuration.
func (c Config) text() string {
	authorities, patience := c.Authorities, c.PatienceSeconds
	if authorities == "" {
		authorities = hostAuthorities
	}
	if patience == 0 {
		patience = defaultPatience
	}
	keys := max(1<<20, c.SizeBytes/c.BlockBytes*keyBytes*5/4)
	var b strings.Builder
	fmt.Fprintf(&b, `daemon off;
pid %[1]s/pid;
error_log %[1]s/%[2]s warn;
worker_processes 2;
events { worker_connections 1024; }
http {
	log_format reports escape=json '{"path":"$uri","status":"$upstream_cache_status","range":"$upstream_http_content_range","length":"$upstream_http_content_length","code":"$upstream_status"}';
	access_log %[1]s/%[3]s reports;
	log_subrequest on;
	proxy_cache_path %[1]s/%[4]s levels=1:2 keys_zone=blocks:%[5]d max_size=%[6]d inactive=3650d use_temp_path=off;
	proxy_cache blocks;
	proxy_cache_key $uri$slice_range;
	proxy_cache_valid 200 206 3650d;
	proxy_cache_lock on;
	proxy_cache_lock_timeout %[7]ds;
	proxy_cache_lock_age %[7]ds;
	proxy_ignore_headers X-Accel-Expires X-Accel-Redirect X-Accel-Limit-Rate X-Accel-Buffering X-Accel-Charset Expires Cache-Control Set-Cookie Vary;
	proxy_hide_header Set-Cookie;
	proxy_hide_header WWW-Authenticate;
	proxy_http_version 1.1;
	proxy_pass_request_headers off;
	proxy_pass_request_body off;
	proxy_set_header Range $slice_range;
	proxy_set_header Host $proxy_host;
	proxy_set_header Connection "";
	proxy_set_header Accept-Encoding "";
	proxy_set_header Authorization "%[8]s";
	proxy_ssl_server_name on;
	proxy_ssl_verify on;
	proxy_ssl_verify_depth 8;
	proxy_ssl_trusted_certificate %[9]s;
	proxy_connect_timeout 5s;
	proxy_read_timeout %[7]ds;
	proxy_send_timeout %[7]ds;
	proxy_intercept_errors on;
	error_page 301 302 303 307 308 = /elsewhere;
	slice %[10]d;
	server {
		listen unix:%[1]s/%[11]s;
		location / { return 404; }
		location = /elsewhere { internal; return 502 "the source leads elsewhere, where its cache does not follow\n"; }
`, place, fileLog, fileReports, dirStore, keys, c.SizeBytes, patience, c.Authorization, authorities, c.BlockBytes, fileDoor)
	for _, f := range c.Files {
		fmt.Fprintf(&b, "\t\tlocation = %s { limit_except GET { deny all; } proxy_pass %s; }\n", f.Path, f.URL)
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}
