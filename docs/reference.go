// Writes the reference of a Go package as one HTML page, and its names for the site's index of references. Run by
// scripts/docs.sh, which gives the style: `go run docs/reference.go FOLDER PATH OUT`.
//
// The standard library parses and formats the comments; a server of documentation would be a download.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"html"
	"io/fs"
	"log"
	"os"
	"strings"
)

var (
	files        = token.NewFileSet()
	page, listed bytes.Buffer
	pkg          *doc.Package
)

// Links to the pages of this module, to headings of this page, and to the standard library's documentation.
func link(to *comment.DocLink) string {
	name := to.Name
	if to.Recv != "" {
		name = to.Recv + "." + name
	}
	switch {
	case to.ImportPath == "" || to.ImportPath == pkg.ImportPath:
		return "#" + name
	case to.ImportPath == "ferry" || strings.HasPrefix(to.ImportPath, "ferry/"):
		return to.ImportPath[strings.LastIndex(to.ImportPath, "/")+1:] + ".html#" + name
	}
	return to.DefaultURL("https://pkg.go.dev")
}

func text(of string) {
	printer := pkg.Printer()
	printer.DocLinkURL, printer.HeadingLevel = link, 3
	page.Write(printer.HTML(pkg.Parser().Parse(of)))
}

func declaration(of ast.Decl) {
	page.WriteString("<pre>")
	var source bytes.Buffer
	if err := format.Node(&source, files, of); err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(&page, "%s</pre>\n", html.EscapeString(source.String()))
}

// One name with its heading, its declaration and its comment; the section groups the names of the index.
func entry(section, name, kind, of string, decl ast.Decl) {
	fmt.Fprintf(&page, "<h3 id=%q>%s %s</h3>\n", name, kind, name)
	declaration(decl)
	text(of)
	short := name[strings.LastIndex(name, ".")+1:]
	fmt.Fprintf(&listed, "%s\t%s\t%s\t%s.html#%s\t%s\n", section, short, name, pkg.Name, name, pkg.Synopsis(of))
}

func values(title string, of []*doc.Value) {
	if len(of) > 0 && title != "" {
		fmt.Fprintf(&page, "<h2>%s</h2>\n", title)
	}
	for _, value := range of {
		for _, name := range value.Names {
			fmt.Fprintf(&page, "<span id=%q></span>", name)
		}
		declaration(value.Decl)
		text(value.Doc)
	}
}

func functions(section, kind, of string, list []*doc.Func) {
	for _, function := range list {
		entry(section, of+function.Name, kind, function.Doc, function.Decl)
	}
}

func main() {
	folder, path, out := os.Args[1], os.Args[2], os.Args[3]
	parsed, err := parser.ParseDir(files, folder, func(file fs.FileInfo) bool {
		return !strings.HasSuffix(file.Name(), "_test.go")
	}, parser.ParseComments)
	if err != nil {
		log.Fatal(err)
	}
	var sources []*ast.File
	for _, found := range parsed {
		for _, source := range found.Files {
			sources = append(sources, source)
		}
	}
	if pkg, err = doc.NewFromFiles(files, sources, path); err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(&page, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Go: %[1]s</title>\n"+
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"></head>\n<body class=\"go\">\n<h1>Go: package %[1]s</h1>\n", path)
	fmt.Fprintf(&page, "<pre>import %q</pre>\n", path)
	text(pkg.Doc)
	values("Constants", pkg.Consts)
	values("Variables", pkg.Vars)
	if len(pkg.Funcs) > 0 {
		page.WriteString("<h2>Functions</h2>\n")
	}
	functions("Package "+path, "func", "", pkg.Funcs)
	page.WriteString("<h2>Types</h2>\n")
	for _, kind := range pkg.Types {
		section := path + "." + kind.Name
		entry(section, kind.Name, "type", kind.Doc, kind.Decl)
		values("", kind.Consts)
		values("", kind.Vars)
		functions(section, "func", "", kind.Funcs)
		functions(section, "method", kind.Name+".", kind.Methods)
	}
	page.WriteString("</body></html>\n")
	for name, of := range map[string]*bytes.Buffer{out + "/" + pkg.Name + ".html": &page, out + "/" + pkg.Name + ".tsv": &listed} {
		if err := os.WriteFile(name, of.Bytes(), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
