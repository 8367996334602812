package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// maxListBytes bounds a list of files.
const maxListBytes = 4 << 20

// datasetFlags are the flags of `dataset add`.
type datasetFlags struct {
	files                         []string
	list, project                 string
	user, passwordFile, tokenFile string
}

func (a *app) datasetAdd() *cobra.Command {
	var f datasetFlags
	cmd := &cobra.Command{
		Use: "add NAME --file URL,CHECKSUM... | --list FILE", Aliases: []string{"create"}, Short: "Add a dataset",
		Args: oneArg("dataset"), ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Add a dataset. A file is a URL with what is known of it after commas:

  adler32=HEX, sha256=HEX   its checksum; give one or the other
  size=BYTES                its size
  path=PATH                 its path in the dataset (default: the last part of the URL)
  url=URL                   another place of the same file, asked when those before it fail; may be repeated

URLs are root://HOST[:PORT]//PATH for XRootD, http:// and https://. --list reads one file a line; empty lines and those that begin with # are
omitted. Nothing is fetched before a cluster asks for the dataset, or 'nearmetal dataset replicate'.

A credential of private sources is stored sealed, and never shown. It is sent by https:// and root:// only. Nodes do not pass files of
such a dataset on to each other.`,
		Example: `  nearmetal dataset add events --file root://eospublic.cern.ch//eos/run1.root,adler32=0a1b2c3d
  nearmetal dataset add events --list files.txt
  nearmetal dataset add private --list files.txt --token-file token`,
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.files, "file", nil, "file of the dataset, URL,KEY=VALUE...; may be repeated")
	flags.StringVar(&f.list, "list", "", `file with one file of the dataset a line, "-" for standard input`)
	flags.StringVar(&f.project, "project", "", "project that owns it (default: the token's)")
	flags.StringVar(&f.user, "user", "", "user at the sources")
	flags.StringVar(&f.passwordFile, "password-file", "", "file with the password of --user")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with a bearer token for the sources")
	out := outputFlag(cmd)
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := f.request(args[0], a.Streams.In)
		if err != nil {
			return err
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		d, err := c.CreateDataset(cmd.Context(), req)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, d, func(w io.Writer) { a.printDataset(w, &d) })
	}
	return cmd
}

// request is what the flags ask for, checked.
func (f *datasetFlags) request(name string, in io.Reader) (api.DatasetRequest, error) {
	req := api.DatasetRequest{Name: name, Project: f.project}
	for _, text := range f.files {
		file, err := parseDatasetFile(text)
		if err != nil {
			return req, usage("--file: %v", err)
		}
		req.Files = append(req.Files, file)
	}
	if f.list != "" {
		listed, err := readDatasetList(f.list, in)
		if err != nil {
			return req, err
		}
		req.Files = append(req.Files, listed...)
	}
	if len(req.Files) == 0 {
		return req, usage("give the files of the dataset: --file URL,CHECKSUM or --list FILE")
	}
	var err error
	if req.Credential, err = f.credential(); err != nil {
		return req, err
	}
	_, err = manifest.CheckDataset(req, manifest.Flags("name"))
	if invalid := new(manifest.Invalid); errors.As(err, &invalid) {
		return req, usage("%s", f.located(invalid).Error())
	}
	return req, err
}

// located names flags in place of fields.
func (f *datasetFlags) located(invalid *manifest.Invalid) *manifest.Invalid {
	renamed := &manifest.Invalid{}
	for _, p := range invalid.Problems {
		switch {
		case p.Location == "name":
			p.Location = "NAME"
		case strings.HasPrefix(p.Location, "credential"):
			p.Location = "the credential"
		case strings.HasPrefix(p.Location, "files["):
			number, rest, _ := strings.Cut(strings.TrimPrefix(p.Location, "files["), "]")
			if i, err := strconv.Atoi(number); err == nil {
				p.Location = fmt.Sprintf("file %d%s", i+1, strings.Replace(rest, ".", ": ", 1))
			}
		default:
			p.Location = "--" + p.Location
		}
		renamed.Problems = append(renamed.Problems, p)
	}
	return renamed
}

func (f *datasetFlags) credential() (*api.DatasetCredential, error) {
	switch {
	case f.tokenFile != "" && (f.user != "" || f.passwordFile != ""):
		return nil, usage("--token-file conflicts with --user and --password-file")
	case f.tokenFile != "":
		token, err := readOneSecret("--token-file", f.tokenFile)
		return &api.DatasetCredential{Token: token}, err
	case f.user == "" && f.passwordFile == "":
		return nil, nil
	case f.user == "" || f.passwordFile == "":
		return nil, usage("--user and --password-file go together")
	}
	password, err := readOneSecret("--password-file", f.passwordFile)
	return &api.DatasetCredential{User: f.user, Password: password}, err
}

// readOneSecret reads a file with one line.
func readOneSecret(flag, path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", usage("%s: %s", flag, fileProblem(path, err))
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", usage("%s: %s does not hold one line with the secret", flag, path)
	}
	return secret, nil
}

// readDatasetList reads a list of files, one a line.
func readDatasetList(path string, in io.Reader) ([]api.DatasetFile, error) {
	name := path
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, usage("--list: %s", fileProblem(path, err))
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxListBytes+1))
	if err != nil {
		return nil, usage("--list: %s: %v", name, err)
	}
	if len(text) > maxListBytes {
		return nil, usage("--list: %s is longer than %d bytes", name, maxListBytes)
	}
	var files []api.DatasetFile
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxListBytes)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		file, err := parseDatasetFile(line)
		if err != nil {
			return nil, usage("--list: %s:%d: %v", name, n, err)
		}
		files = append(files, file)
	}
	return files, lines.Err()
}

// fileKey begins what is said of a file after its URL, which may have commas itself.
var fileKey = regexp.MustCompile(`,(adler32|sha256|size|path|url)=`)

// parseDatasetFile reads URL,KEY=VALUE,...
func parseDatasetFile(text string) (api.DatasetFile, error) {
	at := fileKey.FindAllStringSubmatchIndex(text, -1)
	end := func(i int) int {
		if i < len(at) {
			return at[i][0]
		}
		return len(text)
	}
	file := api.DatasetFile{URLs: []string{text[:end(0)]}}
	for i, m := range at {
		key, value := text[m[2]:m[3]], text[m[1]:end(i+1)]
		switch key {
		case "adler32":
			file.Adler32 = value
		case "sha256":
			file.SHA256 = value
		case "path":
			file.Path = value
		case "url":
			file.URLs = append(file.URLs, value)
		case "size":
			size, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return file, fmt.Errorf("the size %q is no number of bytes", value)
			}
			file.SizeBytes = size
		}
	}
	return file, nil
}
