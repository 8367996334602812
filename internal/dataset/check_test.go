package dataset

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

const sum = "0a1b2c3d"

func TestFilesAreCheckedFieldByField(t *testing.T) {
	long := strings.Repeat("a", api.MaxDatasetURL)
	for _, c := range []struct {
		name, want string
		file       api.DatasetFile
	}{
		{"no place", "urls: is missing", api.DatasetFile{Path: "f", Adler32: sum}},
		{"too many places", "urls: has 9 places", api.DatasetFile{URLs: slices.Repeat([]string{"http://h/f"}, 9), Path: "f", Adler32: sum}},
		{"an unknown scheme", `has the scheme "ftp"`, api.DatasetFile{URLs: []string{"ftp://h/f"}, Adler32: sum}},
		{"a path alone", `has the scheme ""`, api.DatasetFile{URLs: []string{"/data/f"}, Adler32: sum}},
		{"S3", "signs each request", api.DatasetFile{URLs: []string{"s3://bucket/f"}, Adler32: sum}},
		{"a volume", "attach the volume itself", api.DatasetFile{URLs: []string{"volume://data/f"}, Adler32: sum}},
		{"a password in the URL", "stored sealed", api.DatasetFile{URLs: []string{"https://u:secret@h/f"}, Adler32: sum}},
		{"no host", "names no host", api.DatasetFile{URLs: []string{"https:///f"}, Adler32: sum}},
		{"no file", "names no file", api.DatasetFile{URLs: []string{"root://h//"}, Adler32: sum}},
		{"options of XRootD", "options after the path", api.DatasetFile{URLs: []string{"root://h//f?xrd.wantprot=unix"}, Adler32: sum}},
		{"a blank", "has a blank", api.DatasetFile{URLs: []string{"http://h/a b"}, Adler32: sum}},
		{"a long URL", "at most 1024", api.DatasetFile{URLs: []string{"http://h/" + long}, Adler32: sum}},
		{"no checksum", "give one of them", api.DatasetFile{URLs: []string{"http://h/f"}}},
		{"a short checksum", "8 hexadecimal digits", api.DatasetFile{URLs: []string{"http://h/f"}, Adler32: "1"}},
		{"a wrong SHA-256", "64 hexadecimal digits", api.DatasetFile{URLs: []string{"http://h/f"}, SHA256: sum}},
		{"a negative size", "is negative", api.DatasetFile{URLs: []string{"http://h/f"}, SizeBytes: -1, Adler32: sum}},
		{"a path that leads out", "must be relative", api.DatasetFile{Path: "../f", URLs: []string{"http://h/f"}, Adler32: sum}},
		{"an absolute path", "must be relative", api.DatasetFile{Path: "/etc/passwd", URLs: []string{"http://h/f"}, Adler32: sum}},
	} {
		_, problems := Normal(c.file)
		var all []string
		for _, p := range problems {
			all = append(all, p.Field+": "+p.Message)
			if strings.Contains(p.Value, "secret") {
				t.Errorf("%s: the password is shown: %q", c.name, p.Value)
			}
		}
		if text := strings.Join(all, "\n"); len(problems) != 1 || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want one problem with %q", c.name, text, c.want)
		}
	}
	got, problems := Normal(api.DatasetFile{URLs: []string{"root://h:1094//eos/2016/run1.root"}, Adler32: "0A1B2C3D"})
	if len(problems) > 0 || got.Path != "run1.root" || got.Adler32 != sum {
		t.Errorf("a good file: %+v, %v", got, problems)
	}
}

func TestFilesOfADatasetDoNotHideEachOther(t *testing.T) {
	of := func(paths ...string) []Problem {
		var files []api.DatasetFile
		for _, p := range paths {
			files = append(files, api.DatasetFile{Path: p})
		}
		return Clashes(files)
	}
	for _, paths := range [][]string{{"a", "a"}, {"a", "a/b"}, {"a/b/c", "a/b"}, {"a/b", "c", "a/b/d/e"}} {
		if got := of(paths...); len(got) != 1 {
			t.Errorf("%v: %v, want one problem", paths, got)
		}
	}
	if got := of("a/b", "a/c", "ab", "d/a"); len(got) > 0 {
		t.Errorf("files apart: %v", got)
	}
}

func TestCredentialsAreSentInNoClearText(t *testing.T) {
	password, token := &api.DatasetCredential{User: "u", Password: "p"}, &api.DatasetCredential{Token: "t"}
	for _, c := range []struct {
		url  string
		with *api.DatasetCredential
		want string
	}{
		{"http://h/f", password, "in clear"},
		{"http://h/f", token, "in clear"},
		{"root://h//f", password, "give a token"},
		{"https://h/f", &api.DatasetCredential{}, "is empty"},
		{"https://h/f", &api.DatasetCredential{Token: "t", User: "u"}, "besides"},
		{"https://h/f", &api.DatasetCredential{Token: "t\r\nX: y"}, "control character"},
		{"https://h/f", &api.DatasetCredential{User: "u:v", Password: "p"}, "RFC 7617"},
		{"https://h/f", password, ""},
		{"root://h//f", token, ""},
		{"http://h/f", nil, ""},
	} {
		got := CredentialProblem(c.with, []api.DatasetFile{{URLs: []string{c.url}}})
		if c.want == "" != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s with %+v: %q, want %q", c.url, c.with, got, c.want)
		}
	}
}

func TestAnOriginIsAServerWithItsPort(t *testing.T) {
	for url, want := range map[string]string{
		"root://h//f": "root://h:1094", "root://h:2094//f": "root://h:2094", "http://h/f?x=1": "http://h:80", "https://h:/f": "https://h:443",
		"http://[2001:db8::1]/f": "http://[2001:db8::1]:80", "https://[2001:db8::1]:8443/f": "https://[2001:db8::1]:8443", "/f": "", "s3://bucket/f": "", "http://:80/f": "",
	} {
		if got := ServerOf(url); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}
