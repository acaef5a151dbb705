"""Figures: charts as SVG, tables and pages as HTML, for reports and notebooks."""
