//! The Python extension module: conversion only, no logic.
