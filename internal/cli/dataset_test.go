package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAFileOfADatasetIsReadFromOneText(t *testing.T) {
	got, err := parseDatasetFile("root://h:1094//eos/a,b.root,adler32=0a1b2c3d,size=12,path=2016/x.root,url=https://h/a?x=1,y=2")
	want := api.DatasetFile{
		URLs: []string{"root://h:1094//eos/a,b.root", "https://h/a?x=1,y=2"}, Adler32: "0a1b2c3d", SizeBytes: 12, Path: "2016/x.root",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := parseDatasetFile("http://h/f,size=many"); err == nil || !strings.Contains(err.Error(), `"many"`) {
		t.Errorf("a size that is no number: %v", err)
	}
}

func TestMistakesInADatasetNameTheFileAndTheLine(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list := write("list", "# two files\n\nhttp://h/a,adler32=0a1b2c3d\nhttp://h/b,adler32=0a1b2c3d\n")
	req, err := (&datasetFlags{list: list}).request("events", nil)
	if err != nil || len(req.Files) != 2 || req.Files[1].URLs[0] != "http://h/b" {
		t.Errorf("a list: %+v, %v", req, err)
	}
	secret := write("token", "secret\n")
	for name, c := range map[string]struct {
		flags datasetFlags
		want  string
	}{
		"no file":            {datasetFlags{}, "--file URL,CHECKSUM or --list FILE"},
		"no checksum":        {datasetFlags{files: []string{"http://h/f"}}, "file 1: adler32"},
		"a line of the list": {datasetFlags{list: write("bad", "\nhttp://h/a,size=x\n")}, "bad:2:"},
		"no list":            {datasetFlags{list: filepath.Join(dir, "none")}, "there is no file"},
		"a password alone":   {datasetFlags{files: []string{"https://h/f,adler32=0a1b2c3d"}, passwordFile: secret}, "go together"},
		"token and user":     {datasetFlags{files: []string{"https://h/f,adler32=0a1b2c3d"}, tokenFile: secret, user: "u"}, "conflicts"},
		"two lines":          {datasetFlags{files: []string{"https://h/f,adler32=0a1b2c3d"}, tokenFile: list}, "one line with the secret"},
		"a token in clear":   {datasetFlags{files: []string{"http://h/f,adler32=0a1b2c3d"}, tokenFile: secret}, "in clear"},
	} {
		_, err := c.flags.request("events", nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret\n") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	req, err = (&datasetFlags{files: []string{"https://h/f,adler32=0a1b2c3d"}, tokenFile: secret}).request("events", nil)
	if err != nil || req.Credential == nil || req.Credential.Token != "secret" {
		t.Errorf("a token: %+v, %v", req.Credential, err)
	}
}
