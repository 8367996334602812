package tenancy

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// separator is between project and name of a cluster's full name; it can't be in either, both are DNS labels.
const separator = "."

// FullName is the name by which state, events and jobs know a project's cluster: its own in the default project, PROJECT.NAME elsewhere.
func FullName(project, name string) string {
	if projectOr(project) == api.DefaultProject {
		return name
	}
	return project + separator + name
}

// Split is the reverse of FullName.
func Split(full string) (project, name string) {
	project, name, ok := strings.Cut(full, separator)
	if !ok {
		return api.DefaultProject, full
	}
	return project, name
}

// Resolve finds the full name of the cluster that a principal means by a name, short or full, and the project, if one is named beside
// it. A short name is one of the principal's own project. Whether they may touch it is for May to tell.
func Resolve(p Principal, project, name string) (full string, err error) {
	if strings.Count(name, separator) > 1 || strings.HasPrefix(name, separator) || strings.HasSuffix(name, separator) {
		return "", fmt.Errorf("%q is not the name of a cluster; write NAME, or PROJECT.NAME", name)
	}
	if in, short, ok := strings.Cut(name, separator); ok {
		if project != "" && project != in {
			return "", fmt.Errorf("cluster %q conflicts with project %q; omit the project", name, project)
		}
		return FullName(in, short), nil
	}
	if project == "" {
		project = p.Project
	}
	return FullName(project, name), nil
}
