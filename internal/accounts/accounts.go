// Package accounts merges the accounts of an image with those that are generated for a member, in containers and in virtual machines alike.
//
// Accounts of an image, such as those of its daemons, are the member's as well: below the generated ones, which win. But of services that both
// have, such as sshd, the image's are taken: their numbers follow from the order in which an image's packages were installed, so that another
// number would be that of another service of the image, which would lose its account and its files. Both files have the name first and a number
// third (passwd(5), group(5)).
//
// It is pure and knows no file. Start with Merge.
package accounts

import (
	"slices"
	"strconv"
	"strings"
)

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

// Merge returns a file with the generated accounts and those of an image that they lack, by name and by number.
func Merge(generatedText, imageText string) string {
	generated, images := accountsIn(generatedText), accountsIn(imageText)
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
