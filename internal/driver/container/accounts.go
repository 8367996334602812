package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/filetree"
)

// Accounts of an image, such as those of its daemons, are the member's as well: below the generated ones, which win. But of services that both
// have, such as sshd, the image's are taken: their numbers follow from the order in which an image's packages were installed, so that another
// number would be that of another service of the image, which would lose its account and its files. Both files have the name first and a number
// third (passwd(5), group(5)).
var accountFiles = []string{"/etc/passwd", "/etc/group"}

// mostAccountBytes bounds a file of accounts.
const mostAccountBytes = 1 << 20

// accountsOf reads the accounts of an image that is seen at view. Its links mean files of the image: /etc/passwd could be one to
// the host's /etc/shadow.
func accountsOf(view string) (map[string]string, error) {
	root, err := filetree.OpenRoot(view)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	accounts := map[string]string{}
	for _, name := range accountFiles {
		data, err := root.ReadFile(name, mostAccountBytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading the image's accounts: %w", err)
		}
		accounts[name] = string(data)
	}
	return accounts, nil
}

// account is a line of such a file.
type account struct{ name, number, line string }

func accountsIn(text string) (all []account) {
	for line := range strings.Lines(text) {
		if fields := strings.Split(line, ":"); len(fields) > 2 && fields[0] != "" {
			all = append(all, account{fields[0], fields[2], strings.TrimRight(line, "\n")})
		}
	}
	return all
}

// service tells whether an account is neither root's nor a person's nor nobody's (Debian policy, section 9.2.2).
func (a account) service() bool {
	n, err := strconv.Atoi(a.number)
	return err == nil && n > 0 && n < 1000
}

// addAccounts returns files with the accounts of the image that the generated ones lack, by name and by number.
func addAccounts(files []driver.File, accounts map[string]string) []driver.File {
	files = slices.Clone(files)
	for i, f := range files {
		if more, ok := accounts[f.Path]; ok {
			files[i].Content = []byte(merged(accountsIn(string(f.Content)), accountsIn(more)))
		}
	}
	return files
}

// merged is a file of generated accounts and those of an image.
func merged(generated, images []account) string {
	for i, a := range generated {
		same := slices.IndexFunc(images, func(b account) bool { return b.name == a.name })
		if same < 0 || !a.service() || !images[same].service() {
			continue
		}
		if !slices.ContainsFunc(generated, func(b account) bool { return b.name != a.name && b.number == images[same].number }) {
			generated[i] = images[same]
		}
	}
	text := ""
	names, numbers := map[string]bool{}, map[string]bool{}
	for _, a := range generated {
		names[a.name], numbers[a.number] = true, true
		text += a.line + "\n"
	}
	for _, a := range images {
		if !names[a.name] && !numbers[a.number] {
			text += a.line + "\n"
		}
	}
	return text
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
