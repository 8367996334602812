package container

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// Accounts of an image, such as those of its daemons, are the member's as well: below the generated ones, which win. Both files have the
// name first and a number third (passwd(5), group(5)).
var accountFiles = []string{"/etc/passwd", "/etc/group"}

// accountsOf reads the accounts of an image that is seen at view.
func accountsOf(view string) (map[string]string, error) {
	accounts := map[string]string{}
	for _, name := range accountFiles {
		data, err := os.ReadFile(filepath.Join(view, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		accounts[name] = string(data)
	}
	return accounts, nil
}

// addAccounts returns files with the accounts of the image that the generated ones lack, by name and by number.
func addAccounts(files []driver.File, accounts map[string]string) []driver.File {
	files = slices.Clone(files)
	for i, f := range files {
		more, ok := accounts[f.Path]
		if !ok {
			continue
		}
		names, numbers := map[string]bool{}, map[string]bool{}
		for line := range strings.Lines(string(f.Content)) {
			if fields := strings.Split(line, ":"); len(fields) > 2 {
				names[fields[0]], numbers[fields[2]] = true, true
			}
		}
		text := strings.TrimRight(string(f.Content), "\n") + "\n"
		for line := range strings.Lines(more) {
			fields := strings.Split(line, ":")
			if len(fields) > 2 && fields[0] != "" && !names[fields[0]] && !numbers[fields[2]] {
				text += strings.TrimRight(line, "\n") + "\n"
			}
		}
		files[i].Content = []byte(text)
	}
	return files
}

// withAccounts adds what was kept of the image's accounts when the member was started.
func (d *Driver) withAccounts(m driver.Member) (driver.Member, error) {
	if m.Assignment.EnvironmentDigest == "" {
		return m, nil
	}
	var accounts map[string]string
	data, err := os.ReadFile(d.path(m.Assignment.ID, fileAccounts))
	if err == nil {
		err = json.Unmarshal(data, &accounts)
	}
	if err != nil {
		return m, err
	}
	m.Files = addAccounts(m.Files, accounts)
	return m, nil
}
