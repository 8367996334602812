package dataset

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Problem is what is wrong with a field of a file.
type Problem struct {
	// Field is path, urls[0], size_bytes, adler32 or sha256.
	Field, Value, Message string
}

var (
	adler32Form = regexp.MustCompile(`^[0-9a-f]{8}$`)
	sha256Form  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Normal returns a file as it is stored, and what is wrong with it.
func Normal(f api.DatasetFile) (api.DatasetFile, []Problem) {
	var problems []Problem
	add := func(field, value, format string, args ...any) {
		problems = append(problems, Problem{field, value, fmt.Sprintf(format, args...)})
	}
	switch {
	case len(f.URLs) == 0:
		add("urls", "", "is missing; give at least one place to fetch the file from")
	case len(f.URLs) > api.MaxDatasetURLs:
		add("urls", "", "has %d places; at most %d are possible", len(f.URLs), api.MaxDatasetURLs)
	}
	for i, text := range f.URLs {
		if why := urlProblem(text); why != "" {
			add(fmt.Sprintf("urls[%d]", i), shown(text), "%s", why)
		}
	}
	if f.Path == "" && len(f.URLs) > 0 && len(problems) == 0 {
		parsed, _ := url.Parse(f.URLs[0])
		f.Path = path.Base(parsed.Path)
	}
	if why := pathProblem(f.Path); why != "" && (f.Path != "" || len(problems) == 0) {
		add("path", f.Path, "%s", why)
	}
	if f.SizeBytes < 0 {
		add("size_bytes", fmt.Sprint(f.SizeBytes), "is negative")
	}
	f.Adler32, f.SHA256 = strings.ToLower(f.Adler32), strings.ToLower(f.SHA256)
	switch {
	case f.Adler32 == "" && f.SHA256 == "":
		add("adler32", "", "is missing, and so is sha256; give one of them: a file is shown to members only after its checksum was verified")
	case f.Adler32 != "" && !adler32Form.MatchString(f.Adler32):
		add("adler32", f.Adler32, "%q is no Adler-32 checksum, which has 8 hexadecimal digits", f.Adler32)
	case f.SHA256 != "" && !sha256Form.MatchString(f.SHA256):
		add("sha256", f.SHA256, "%q is no SHA-256 checksum, which has 64 hexadecimal digits", f.SHA256)
	}
	return f, problems
}

// urlProblem is what is wrong with a place of a file, "" for nothing.
func urlProblem(text string) string {
	if len(text) > api.MaxDatasetURL {
		return fmt.Sprintf("has %d bytes; at most %d are possible", len(text), api.MaxDatasetURL)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "has a blank, a control character or a letter outside ASCII, which a URL has in its encoded form only"
	}
	u, err := url.Parse(text)
	if err != nil {
		return "is no URL"
	}
	if u.User != nil { // everybody who sees the dataset would see it
		return "has a user or a password; give them as the dataset's credential, which is stored sealed"
	}
	switch u.Scheme {
	case "http", "https":
		if u.Fragment != "" {
			return "has a fragment (#), which names no file"
		}
	case "root":
		if u.RawQuery != "" || u.Fragment != "" {
			return "has options after the path, which can't be given; omit them"
		}
	case "s3":
		return "is of S3, which signs each request with a secret key: nodes can't do that; serve the bucket by https://"
	case "volume":
		return "is of a volume, which can't be a source of a dataset: attach the volume itself to the cluster, read-only"
	default:
		return fmt.Sprintf("has the scheme %q; files are fetched by root://, http:// and https://", u.Scheme)
	}
	if u.Hostname() == "" {
		return "names no host"
	}
	if strings.Trim(u.Path, "/") == "" {
		return "names no file"
	}
	return ""
}

// shown is a URL without what follows its host where it may hold a password.
func shown(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}

// pathProblem is what is wrong with a path within a dataset, "" for nothing.
func pathProblem(p string) string {
	switch {
	case p == "" || p == "." || p == "/":
		return "is missing, and the first URL does not end in a name"
	case len(p) > api.MaxDatasetPath:
		return fmt.Sprintf("has %d bytes; at most %d are possible", len(p), api.MaxDatasetPath)
	case path.IsAbs(p) || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../"):
		return "must be relative, without '.', '..' and double '/'"
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' || r == '\ufffd' }):
		return "has a control character or a backslash"
	default:
		return ""
	}
}

// Clashes returns the problem of two files of which one is at the path of the other, or below it; its field begins with files[N].
func Clashes(files []api.DatasetFile) []Problem {
	var problems []Problem
	first, dirs := map[string]int{}, map[string]int{}
	for i, f := range files {
		at := fmt.Sprintf("files[%d].path", i)
		if j, taken := first[f.Path]; taken {
			problems = append(problems, Problem{at, f.Path, fmt.Sprintf("is also the path of files[%d]", j)})
			continue
		}
		if j, taken := dirs[f.Path]; taken {
			problems = append(problems, Problem{at, f.Path, fmt.Sprintf("is a directory, in which files[%d] is", j)})
		}
		first[f.Path] = i
		for dir := path.Dir(f.Path); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if j, taken := first[dir]; taken {
				problems = append(problems, Problem{at, f.Path, fmt.Sprintf("is below files[%d], which is a file", j)})
				break
			}
			if _, known := dirs[dir]; !known {
				dirs[dir] = i
			}
		}
	}
	return problems
}

// CredentialProblem is what is wrong with a credential for some files, "" for nothing.
func CredentialProblem(c *api.DatasetCredential, files []api.DatasetFile) string {
	switch {
	case c == nil:
		return ""
	case c.Token == "" && c.User == "":
		return "is empty; give user and password, or a token, or omit the credential"
	case c.Token != "" && (c.User != "" || c.Password != ""):
		return "has a token besides user and password, of which sources take one; omit the other"
	case strings.ContainsFunc(c.User+c.Password+c.Token, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has a control character"
	case strings.Contains(c.User, ":"):
		return "has a user with ':', which HTTP can't send (RFC 7617)"
	}
	for _, f := range files {
		for _, text := range f.URLs {
			switch {
			case strings.HasPrefix(text, "http://"): // it would cross the network in clear
				return fmt.Sprintf("would be sent in clear to %s; use https://", text)
			case strings.HasPrefix(text, "root://") && c.Token == "":
				return fmt.Sprintf("has a password, which XRootD (%s) does not take; give a token", text)
			}
		}
	}
	return ""
}
